// Streams, events and captures of the software CUDA: queues of work that is done as late as a GPU may do it.
//
//   put(stream, work)         the work is queued; nothing is computed
//   wait for a stream         what is queued there is done, and what it waits for on other streams before it
//
// So a program that forgets to wait reads what was there before: NaN in fresh memory. SOFTWARE_CUDA_ORDER=early does all work at
// once; a number, the seed, does some of it at each call. One lock holds for everything: threads take turns.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace software_cuda {

using Work = std::function<void()>;
struct Stream;
using Clock = std::map<Stream*, uint64_t>;                           // how much of each stream has been seen

struct Capture {
    Stream* origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;                                          // which began it
    std::vector<Work> works;
    std::set<Stream*> members;                                       // streams that are captured, the origin among them
    bool is_valid = true;
};

struct Stream {
    bool is_blocking = true;                                         // waits for the null stream, and that for it
    bool is_closed = false;
    int device = 0, priority = 0;
    std::deque<Work> queue;
    uint64_t num_put = 0, num_done = 0;
    std::shared_ptr<Capture> capture;
    Clock seen;                                                      // within a capture
};

struct Event {
    Stream* stream = nullptr;                                        // null: never recorded
    uint64_t number = 0;                                             // work of the stream that is before it
    std::shared_ptr<Capture> capture;
    Clock seen;
    bool is_timed = true;
    std::shared_ptr<std::chrono::steady_clock::time_point> when;
};

extern std::recursive_mutex everything;
struct Lock : std::lock_guard<std::recursive_mutex> {
    Lock() : std::lock_guard<std::recursive_mutex>(everything) {}
};

extern thread_local int current_device;
int num_devices();

cudaError_t failed(cudaError_t error);                               // cudaGetLastError returns it
// A kernel has failed: the next call that waits or launches returns the error, with this text.
void note_trouble(cudaError_t error, const std::string& text);
cudaError_t trouble();
std::string trouble_text(cudaError_t error);

Stream* stream_of(cudaStream_t handle);                              // null: closed
cudaError_t put(cudaStream_t handle, Work work);
cudaError_t finish(cudaStream_t handle);                             // the host waits for a stream
void finish_device(int device);
bool is_captured(cudaStream_t handle);
// Calls that a capture of another mode than the relaxed one forbids, as to allocate memory.
cudaError_t refuse_under_capture();

}  // namespace software_cuda
