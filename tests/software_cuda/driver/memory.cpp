#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace software_cuda {

namespace {

constexpr size_t PAGE = 4096;
// What CUDA aligns to; an allocation of a stream ends where it was asked to end, but for a pack that a load may touch.
constexpr size_t ALIGNMENT = 512, PACK = 16;
constexpr unsigned char POISON = 0xFF;                               // NaN in every floating-point type

struct Block {
    size_t num_bytes;
    int device;
    size_t pages_bytes;                                              // of the pages between the guards
    bool is_locked;                                                  // memory of the host, page-locked
    bool is_others;                                                  // of another process
};

std::map<uint64_t, Block> blocks;                                    // by their first address
std::map<uint64_t, int> shared;                                      // {first address: file whose pages these are}
size_t used[8];

size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t capacity() {
    static const char* said = getenv("SOFTWARE_CUDA_BYTES");
    return said ? strtoull(said, nullptr, 0) : (size_t)8 << 30;
}

uint64_t pages_of(const std::pair<const uint64_t, Block>& block) { return block.first / PAGE * PAGE; }

void* allocated(size_t num_bytes, size_t alignment, bool is_locked) {
    size_t pages = rounded(std::max<size_t>(num_bytes, 1), PAGE);
    char* whole = (char*)mmap(nullptr, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) return nullptr;
    mprotect(whole + PAGE, pages, PROT_READ | PROT_WRITE);
    char* begin = whole + PAGE + pages - rounded(std::max<size_t>(num_bytes, 1), alignment);
    memset(begin, POISON, num_bytes);
    blocks[(uint64_t)begin] = {num_bytes, current_device, pages, is_locked, false};
    if (!is_locked) used[current_device] += num_bytes;
    return begin;
}

cudaError_t on_gpu(void** place, size_t num_bytes, size_t alignment) {
    Lock lock;
    if (cudaError_t error = refuse_under_capture()) return error;
    if (used[current_device] + num_bytes > capacity()) return failed(cudaErrorMemoryAllocation);
    *place = num_bytes ? allocated(num_bytes, alignment, false) : nullptr;
    return *place || !num_bytes ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

std::map<uint64_t, Block>::iterator block_at(uint64_t address) {
    auto found = blocks.upper_bound(address);
    if (found == blocks.begin()) return blocks.end();
    --found;
    return address < found->first + std::max<size_t>(found->second.num_bytes, 1) ? found : blocks.end();
}

void give_back(uint64_t begin) {
    auto found = blocks.find(begin);
    if (found == blocks.end()) return;
    if (!found->second.is_locked && !found->second.is_others) used[found->second.device] -= found->second.num_bytes;
    munmap((void*)(pages_of(*found) - PAGE), found->second.pages_bytes + 2 * PAGE);
    if (shared.count(begin)) close(shared[begin]), shared.erase(begin);
    blocks.erase(found);
}

cudaError_t freed(void* place, bool is_locked) {
    Lock lock;
    if (!place) return cudaSuccess;
    auto found = blocks.find((uint64_t)place);
    if (found == blocks.end() || found->second.is_locked != is_locked || found->second.is_others) return failed(cudaErrorInvalidValue);
    if (cudaError_t error = refuse_under_capture()) return error;
    for (int device = 0; device < num_devices(); device++) finish_device(device);
    give_back((uint64_t)place);
    return cudaSuccess;
}

// ---- copies -------------------------------------------------------------------------------------------------------

bool is_of_gpu(const void* place) {
    auto found = block_at((uint64_t)place);
    return found != blocks.end() && !found->second.is_locked;
}
bool is_pageable(const void* place) { return block_at((uint64_t)place) == blocks.end(); }

bool is_inside(const void* place, size_t num_bytes) {                // of the allocation where it begins, if there is one
    auto found = block_at((uint64_t)place);
    return found == blocks.end() || (uint64_t)place + num_bytes <= found->first + found->second.num_bytes;
}

bool are_of_kind(const void* to, const void* from, cudaMemcpyKind kind) {
    bool to_gpu = is_of_gpu(to), from_gpu = is_of_gpu(from);
    switch (kind) {
        case cudaMemcpyHostToHost: return !to_gpu && !from_gpu;
        case cudaMemcpyHostToDevice: return to_gpu && !from_gpu;
        case cudaMemcpyDeviceToHost: return !to_gpu && from_gpu;
        case cudaMemcpyDeviceToDevice: return to_gpu && from_gpu;
        default: return true;
    }
}

// What is in pageable memory is read before the call returns, and what goes there is there when it returns.
cudaError_t copied(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind, cudaStream_t stream, bool waits) {
    Lock lock;
    if (!num_bytes) return cudaSuccess;
    if (!is_inside(to, num_bytes) || !is_inside(from, num_bytes) || !are_of_kind(to, from, kind)) return failed(cudaErrorInvalidValue);
    Work work = [=] { memmove(to, from, num_bytes); };
    if (is_pageable(from)) {
        auto read = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + num_bytes);
        work = [=] { memcpy(to, read->data(), num_bytes); };
    }
    cudaError_t error = put(stream, work);
    bool returns_later = waits || (is_pageable(to) && !is_captured(stream));
    return error || !returns_later ? error : finish(stream);
}

}  // namespace

Span allocation_at(uint64_t address) {
    auto found = block_at(address);
    return found == blocks.end() ? Span{0, 0} : Span{found->first, found->first + found->second.num_bytes};
}

API cudaError_t cudaMalloc(void** place, size_t num_bytes) { return on_gpu(place, num_bytes, ALIGNMENT); }
API cudaError_t cudaFree(void* place) { return freed(place, false); }
API cudaError_t cudaHostAlloc(void** place, size_t num_bytes, unsigned) {
    Lock lock;
    if (cudaError_t error = refuse_under_capture()) return error;
    *place = allocated(num_bytes, ALIGNMENT, true);
    return *place ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
API cudaError_t cudaFreeHost(void* place) { return freed(place, true); }

API cudaError_t cudaMallocAsync(void** place, size_t num_bytes, cudaStream_t) { return on_gpu(place, num_bytes, PACK); }
API cudaError_t cudaFreeAsync(void* place, cudaStream_t stream) {
    return put(stream, [begin = (uint64_t)place] { give_back(begin); });
}

API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    Lock lock;
    *total = capacity(), *free = *total - used[current_device];
    return cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copied(to, from, num_bytes, kind, stream, false);
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind) {
    Lock lock;
    if (cudaError_t error = refuse_under_capture()) return error;
    return copied(to, from, num_bytes, kind, nullptr, !is_of_gpu(to) || !is_of_gpu(from));
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t num_bytes, cudaStream_t stream) {
    return copied(to, from, num_bytes, cudaMemcpyDeviceToDevice, stream, false);
}
API cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t num_bytes) {
    return copied(to, from, num_bytes, cudaMemcpyDeviceToDevice, nullptr, false);
}

API cudaError_t cudaMemsetAsync(void* to, int value, size_t num_bytes, cudaStream_t stream) {
    Lock lock;
    if (num_bytes && (is_pageable(to) || !is_inside(to, num_bytes))) return failed(cudaErrorInvalidValue);
    return put(stream, [=] { memset(to, value, num_bytes); });
}
API cudaError_t cudaMemset(void* to, int value, size_t num_bytes) { return cudaMemsetAsync(to, value, num_bytes, nullptr); }

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* place) {
    Lock lock;
    memset(found, 0, sizeof *found);
    auto block = block_at((uint64_t)place);
    if (block == blocks.end()) return cudaSuccess;
    found->type = block->second.is_locked ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    found->device = block->second.device;
    found->devicePointer = (void*)place;
    found->hostPointer = block->second.is_locked ? (void*)place : nullptr;
    return cudaSuccess;
}

// ---- between processes ----------------------------------------------------------------------------------------------

namespace {

struct Handle {                                                      // of a block, in 64 bytes
    int process, file;
    size_t num_bytes, pages_bytes;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

// Put the pages of a block into a file that others can open, where they are.
int as_file(std::pair<const uint64_t, Block>& block) {
    if (shared.count(block.first)) return shared[block.first];
    int file = memfd_create("software-cuda", 0);
    void* pages = (void*)pages_of(block);
    size_t num_bytes = block.second.pages_bytes;
    if (file < 0 || ftruncate(file, num_bytes) || pwrite(file, pages, num_bytes, 0) != (ssize_t)num_bytes) return -1;
    if (mmap(pages, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return -1;
    return shared[block.first] = file;
}

}  // namespace

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* place) {
    Lock lock;
    auto block = block_at((uint64_t)place);
    if (block == blocks.end() || block->second.is_locked) return failed(cudaErrorInvalidValue);
    int file = as_file(*block);
    if (file < 0) return failed(cudaErrorMapBufferObjectFailed);
    Handle made{getpid(), file, block->second.num_bytes, block->second.pages_bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return cudaSuccess;
}

API cudaError_t cudaIpcOpenMemHandle(void** place, cudaIpcMemHandle_t handle, unsigned) {
    Lock lock;
    Handle of;
    memcpy(&of, &handle, sizeof of);
    if (of.process == getpid()) return failed(cudaErrorDeviceUninitialized);
    std::string path = "/proc/" + std::to_string(of.process) + "/fd/" + std::to_string(of.file);
    int file = open(path.c_str(), O_RDWR);
    if (file < 0) return failed(cudaErrorMapBufferObjectFailed);
    char* whole = (char*)mmap(nullptr, of.pages_bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mmap(whole + PAGE, of.pages_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    char* begin = whole + PAGE + of.pages_bytes - rounded(of.num_bytes, ALIGNMENT);
    blocks[(uint64_t)begin] = {of.num_bytes, current_device, of.pages_bytes, false, true};
    *place = begin;
    return cudaSuccess;
}

API cudaError_t cudaIpcCloseMemHandle(void* place) {
    Lock lock;
    auto found = blocks.find((uint64_t)place);
    if (found == blocks.end() || !found->second.is_others) return failed(cudaErrorInvalidValue);
    finish_device(current_device);
    give_back((uint64_t)place);
    return cudaSuccess;
}

}  // namespace software_cuda
