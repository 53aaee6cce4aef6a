// The driver's part of the software CUDA: PTX becomes a library of functions (translate.py), kept by a hash of its text, and a
// launch runs one of them in the order of its stream.
#include "memory.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

extern char** environ;

namespace software_cuda {

namespace {

constexpr int PLAIN_SHARED_BYTES = 48 << 10, MOST_SHARED_BYTES = 227 << 10, MOST_THREADS = 1024;

// As ptx.h declares them.
struct Parameter { unsigned offset, bytes; };
struct Facts { unsigned num_parameters; const Parameter* parameters; unsigned shared_bytes, most_threads; };
using Launch = void (*)(void** values, const unsigned* bytes, unsigned count, const unsigned* sizes, unsigned shared, unsigned limit,
                        int order, char* error);

struct Module { void* library; };
struct Kernel {
    std::string name;
    Launch launch;
    const Facts* facts;
    int most_dynamic_bytes;
};

const char* said(const char* name) {
    const char* value = getenv(name);
    if (!value) fprintf(stderr, "software CUDA: %s is not set\n", name), abort();
    return value;
}

std::string digest(const char* text) {                               // FNV-1a, of two seeds
    char hex[33];
    uint64_t a = 0xcbf29ce484222325u, b = ~a;
    for (const char* at = text; *at; at++) a = (a ^ (unsigned char)*at) * 0x100000001b3u, b = (b ^ (unsigned char)*at) * 0x100000001b3u;
    snprintf(hex, sizeof hex, "%016lx%016lx", a, b);
    return hex;
}

// Run the translator: python translate.py PTX LIBRARY.
bool translate(const char* text, const std::string& library) {
    std::string ptx = library + "." + std::to_string(getpid()) + ".ptx";
    std::ofstream(ptx) << text;
    const char* command[] = {said("SOFTWARE_CUDA_PYTHON"), said("SOFTWARE_CUDA_TRANSLATOR"), ptx.c_str(), library.c_str(), nullptr};
    pid_t process;
    int status = 1;
    if (posix_spawn(&process, command[0], nullptr, nullptr, (char**)command, environ)) return false;
    waitpid(process, &status, 0);
    if (status == 0) unlink(ptx.c_str());
    else fprintf(stderr, "software CUDA: %s was not translated\n", ptx.c_str());
    return status == 0;
}

std::string triple(const unsigned* sizes) {
    return "(" + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " + std::to_string(sizes[2]) + ")";
}

struct Call {
    Kernel* kernel;
    unsigned sizes[6], shared;
    std::vector<std::vector<char>> values;

    void run() {
        std::vector<void*> places;
        std::vector<unsigned> bytes;
        for (auto& value : values) places.push_back(value.data()), bytes.push_back(value.size());
        char error[512] = "";
        static const char* order = getenv("SOFTWARE_CUDA_THREADS");  // 0 forward, 1 backward, or a seed
        kernel->launch(places.data(), bytes.data(), bytes.size(), sizes, shared, MOST_SHARED_BYTES, order ? atoi(order) : 0, error);
        if (*error) refuse(error);
    }
    void refuse(const std::string& error) {
        std::string text = "kernel " + kernel->name + ", grid " + triple(sizes) + ", block " + triple(sizes + 3) + ": " + error;
        bool is_misaligned = error.find("misaligned") != error.npos, is_outside = error.find("outside") != error.npos;
        note_trouble(is_misaligned ? cudaErrorMisalignedAddress : is_outside ? cudaErrorIllegalAddress : cudaErrorLaunchFailure, text);
        fprintf(stderr, "software CUDA: %s\n", text.c_str());
    }
};

bool is_possible(const Kernel& kernel, const unsigned* sizes, unsigned shared) {
    const unsigned most[] = {2147483647, 65535, 65535, 1024, 1024, 64};
    for (int i = 0; i < 6; i++)
        if (!sizes[i] || sizes[i] > most[i]) return false;
    unsigned threads = sizes[3] * sizes[4] * sizes[5];
    return threads <= kernel.facts->most_threads && (int)(shared + kernel.facts->shared_bytes) <= kernel.most_dynamic_bytes;
}

}  // namespace

// ---- modules ------------------------------------------------------------------------------------------------------

API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    Lock lock;
    std::string path = std::string(said("SOFTWARE_CUDA_KERNELS")) + "/" + digest((const char*)image) + ".so";
    if (access(path.c_str(), R_OK) && !translate((const char*)image, path)) return CUDA_ERROR_INVALID_PTX;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "software CUDA: %s\n", dlerror()), CUDA_ERROR_INVALID_IMAGE;
    ((void (*)(Span (*)(uint64_t)))dlsym(library, "arrays_are_found_by"))(allocation_at);
    *module = (CUmodule) new Module{library};
    return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    void* library = ((Module*)module)->library;
    auto launch = (Launch)dlsym(library, (std::string("launch_") + name).c_str());
    auto facts = (const Facts*)dlsym(library, (std::string("facts_") + name).c_str());
    if (!launch || !facts) return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction) new Kernel{name, launch, facts, PLAIN_SHARED_BYTES};
    return CUDA_SUCCESS;
}

// ---- kernels ------------------------------------------------------------------------------------------------------

API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void** values, void**) {
    auto* kernel = (Kernel*)function;
    auto call = std::make_shared<Call>(Call{kernel, {gx, gy, gz, bx, by, bz}, shared, {}});
    if (!is_possible(*kernel, call->sizes, shared)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < kernel->facts->num_parameters; i++) {
        const char* value = (const char*)values[i];
        call->values.emplace_back(value, value + kernel->facts->parameters[i].bytes);
    }
    return (CUresult)put((cudaStream_t)stream, [call] { call->run(); });
}

API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    auto* kernel = (Kernel*)function;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = kernel->facts->most_threads; break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = kernel->facts->shared_bytes; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel->most_dynamic_bytes - kernel->facts->shared_bytes; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 64; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    auto* kernel = (Kernel*)function;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    int wanted = value + kernel->facts->shared_bytes;
    if (value < 0 || wanted > MOST_SHARED_BYTES) return CUDA_ERROR_INVALID_VALUE;
    kernel->most_dynamic_bytes = std::max(wanted, PLAIN_SHARED_BYTES);
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) { return *blocks = 2, CUDA_SUCCESS; }
API CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize, size_t, int) {
    *grid = 264, *block = std::min<int>(512, ((Kernel*)function)->facts->most_threads);
    return CUDA_SUCCESS;
}

// ---- contexts: one for each GPU, which is always there ----------------------------------------------------------------

API CUresult cuGetErrorName(CUresult error, const char** text) { return *text = cudaGetErrorName((cudaError_t)error), CUDA_SUCCESS; }
API CUresult cuGetErrorString(CUresult error, const char** text) { return *text = cudaGetErrorString((cudaError_t)error), CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext* context) { return *context = (CUcontext)(uintptr_t)(current_device + 1), CUDA_SUCCESS; }
API CUresult cuCtxSetCurrent(CUcontext context) {
    return context ? (CUresult)cudaSetDevice((int)(uintptr_t)context - 1) : CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice* device) { return *device = current_device, CUDA_SUCCESS; }
API CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }

}  // namespace software_cuda
