// What the software CUDA says of its GPUs: those of an H100, of one multiprocessor each.
#include "streams.h"

#include <cstdio>
#include <cstring>

namespace software_cuda {

namespace {

constexpr int VERSION = 13000, MAJOR = 9, MINOR = 0;
constexpr size_t SHARED_BYTES = 48 << 10, MOST_SHARED_BYTES = 227 << 10, ALL_SHARED_BYTES = 228 << 10;
constexpr int NUM_MULTIPROCESSORS = 132;

}  // namespace

API const char* cudaGetErrorName(cudaError_t error) {
    static thread_local std::string text;
    text = "cudaError " + std::to_string((int)error);
    return text.c_str();
}
API const char* cudaGetErrorString(cudaError_t error) {
    Lock lock;
    static thread_local std::string text;
    text = "see cudaError_t of driver_types.h" + trouble_text(error);
    return text.c_str();
}

API cudaError_t cudaDriverGetVersion(int* version) { return *version = VERSION, cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int* version) { return *version = VERSION, cudaSuccess; }
API cudaError_t cudaGetDeviceCount(int* count) { return *count = num_devices(), cudaSuccess; }
API cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
API cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= num_devices()) return failed(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device < 0 || device >= num_devices()) return failed(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = MAJOR; break;
        case cudaDevAttrComputeCapabilityMinor: *value = MINOR; break;
        case cudaDevAttrMultiProcessorCount: *value = NUM_MULTIPROCESSORS; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_BYTES; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = MOST_SHARED_BYTES; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = ALL_SHARED_BYTES; break;
        case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
    if (device < 0 || device >= num_devices()) return failed(cudaErrorInvalidDevice);
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "software CUDA");
    size_t free;
    cudaMemGetInfo(&free, &found->totalGlobalMem);
    found->sharedMemPerBlock = SHARED_BYTES, found->sharedMemPerBlockOptin = MOST_SHARED_BYTES;
    found->sharedMemPerMultiprocessor = ALL_SHARED_BYTES, found->reservedSharedMemPerBlock = 1 << 10;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->warpSize = 32, found->maxThreadsPerBlock = 1024, found->maxThreadsPerMultiProcessor = 2048;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024, found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 2147483647, found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->major = MAJOR, found->minor = MINOR, found->multiProcessorCount = NUM_MULTIPROCESSORS;
    found->l2CacheSize = 50 << 20, found->unifiedAddressing = 1, found->pciBusID = device + 1;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    snprintf(text, size, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    unsigned bus = 0;
    if (sscanf(text, "%*x:%x", &bus) != 1 || bus < 1 || (int)bus > num_devices()) return failed(cudaErrorInvalidDevice);
    return *device = bus - 1, cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
API cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }
API cudaError_t cudaProfilerStart() { return cudaSuccess; }
API cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // namespace software_cuda
