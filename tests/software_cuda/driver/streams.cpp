#include "streams.h"

#include <cstdlib>
#include <cstring>

namespace software_cuda {

std::recursive_mutex everything;
thread_local int current_device = 0;

namespace {

constexpr int MOST_DEVICES = 8;
Stream null_streams[MOST_DEVICES];
std::set<Stream*> streams;                                           // those that were made; none is ever freed
thread_local cudaError_t last_error = cudaSuccess;
cudaError_t troubled = cudaSuccess;
std::map<int, std::string> texts;                                    // {error: what its last kernel said}

struct Graph { std::vector<Work> works; };

// ---- order --------------------------------------------------------------------------------------------------------

enum { LATE = 0, EARLY = 1 };

uint64_t order() {                                                   // or a seed
    static const char* said = getenv("SOFTWARE_CUDA_ORDER");
    static uint64_t value = !said || !strcmp(said, "late") ? LATE : !strcmp(said, "early") ? EARLY : strtoull(said, nullptr, 0);
    return value;
}

uint64_t random_bits() {                                             // xorshift
    static uint64_t state = order() * 0x9E3779B97F4A7C15u + 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

void do_next(Stream& stream) {
    Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.num_done++;
    work();
}

// What this work waits for was put before it, so this ends.
void finish_until(Stream& stream, uint64_t number) {
    while (stream.num_done < number) do_next(stream);
}

std::vector<Stream*> streams_of(int device) {
    std::vector<Stream*> found{&null_streams[device]};
    for (Stream* stream : streams)
        if (stream->device == device) found.push_back(stream);
    return found;
}

void go_on() {
    if (order() == EARLY) finish_device(current_device);
    if (order() <= EARLY) return;
    for (Stream* stream : streams_of(current_device))
        while (!stream->queue.empty() && random_bits() % 4 == 0) do_next(*stream);
}

// ---- captures -----------------------------------------------------------------------------------------------------

cudaError_t spoiled(Capture& capture, cudaError_t error) {
    capture.is_valid = false;
    return failed(error);
}

bool is_null(const Stream* stream) { return stream >= null_streams && stream < null_streams + MOST_DEVICES; }

// The null stream waits for all blocking streams, so nothing can be put there while one of them is captured.
cudaError_t refuse_null_stream(const Stream* stream) {
    if (!is_null(stream)) return cudaSuccess;
    for (Stream* other : streams_of(stream->device))
        if (other->capture && other->is_blocking) return spoiled(*other->capture, cudaErrorStreamCaptureImplicit);
    return cudaSuccess;
}

cudaError_t note(Stream& stream, Work work) {
    Capture& capture = *stream.capture;
    if (!capture.is_valid) return failed(cudaErrorStreamCaptureInvalidated);
    capture.works.push_back(std::move(work));
    stream.seen[&stream]++;
    return cudaSuccess;
}

void merge(Clock& into, const Clock& from) {
    for (auto& [stream, number] : from) into[stream] = std::max(into[stream], number);
}

// ---- the rules of the null stream -----------------------------------------------------------------------------------

void add(Stream& stream, Work work) {
    stream.queue.push_back(std::move(work));
    stream.num_put++;
}

void follow(Stream& stream, Stream& other) {
    uint64_t number = other.num_put;
    if (other.num_done < number) add(stream, [&other, number] { finish_until(other, number); });
}

void follow_as_a_blocking_one(Stream& stream) {
    if (is_null(&stream)) {
        for (Stream* other : streams_of(stream.device))
            if (other != &stream && other->is_blocking && !other->capture) follow(stream, *other);
    } else if (stream.is_blocking) follow(stream, null_streams[stream.device]);
}

bool is_done(const Event& event) { return !event.stream || event.stream->num_done >= event.number; }

}  // namespace

int num_devices() {
    static const char* said = getenv("SOFTWARE_CUDA_DEVICES");
    return said ? std::min(atoi(said), MOST_DEVICES) : 1;
}

cudaError_t failed(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

void note_trouble(cudaError_t error, const std::string& text) { troubled = error, texts[error] = text; }

cudaError_t trouble() {
    cudaError_t error = troubled;
    troubled = cudaSuccess;
    return failed(error);
}

std::string trouble_text(cudaError_t error) { return texts.count(error) ? ": " + texts[error] : ""; }

Stream* stream_of(cudaStream_t handle) {
    static_assert(sizeof handle == 8, "handles are addresses");
    if ((uintptr_t)handle <= 2) {                                    // the null stream, and its other names
        null_streams[current_device].device = current_device;
        return &null_streams[current_device];
    }
    Stream* stream = (Stream*)handle;
    return streams.count(stream) && !stream->is_closed ? stream : nullptr;
}

cudaError_t put(cudaStream_t handle, Work work) {
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    if (stream->capture) return note(*stream, std::move(work));
    if (cudaError_t error = refuse_null_stream(stream)) return error;
    follow_as_a_blocking_one(*stream);
    add(*stream, std::move(work));
    go_on();
    return trouble();
}

cudaError_t finish(cudaStream_t handle) {
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    if (stream->capture) return spoiled(*stream->capture, cudaErrorStreamCaptureUnsupported);
    if (cudaError_t error = refuse_null_stream(stream)) return error;
    follow_as_a_blocking_one(*stream);
    finish_until(*stream, stream->num_put);
    return trouble();
}

void finish_device(int device) {
    for (Stream* stream : streams_of(device)) finish_until(*stream, stream->num_put);
}

bool is_captured(cudaStream_t handle) {
    Lock lock;
    Stream* stream = stream_of(handle);
    return stream && stream->capture;
}

cudaError_t refuse_under_capture() {
    for (Stream* stream : streams) {
        if (!stream->capture || stream->capture->mode == cudaStreamCaptureModeRelaxed) continue;
        bool is_ours = stream->capture->thread == std::this_thread::get_id();
        if (is_ours || stream->capture->mode == cudaStreamCaptureModeGlobal)
            return spoiled(*stream->capture, cudaErrorStreamCaptureUnsupported);
    }
    return cudaSuccess;
}

// ---- streams ------------------------------------------------------------------------------------------------------

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
    Lock lock;
    auto* stream = new Stream;
    stream->is_blocking = !(flags & cudaStreamNonBlocking);
    stream->device = current_device, stream->priority = priority;
    streams.insert(stream);
    *handle = (cudaStream_t)stream;
    return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) { return cudaStreamCreateWithPriority(handle, flags, 0); }
API cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithFlags(handle, 0); }

API cudaError_t cudaStreamDestroy(cudaStream_t handle) {             // its work is done all the same
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream || is_null(stream)) return failed(cudaErrorInvalidResourceHandle);
    finish_until(*stream, stream->num_put);
    stream->is_closed = true;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    *flags = stream->is_blocking ? 0 : cudaStreamNonBlocking;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    *priority = stream->priority;
    return cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) { return finish(handle); }

API cudaError_t cudaStreamQuery(cudaStream_t handle) {               // a GPU goes on meanwhile
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    if (stream->capture) return spoiled(*stream->capture, cudaErrorStreamCaptureUnsupported);
    if (stream->queue.empty()) return trouble();
    do_next(*stream);
    return stream->queue.empty() ? trouble() : cudaErrorNotReady;
}

API cudaError_t cudaDeviceSynchronize() {
    Lock lock;
    for (Stream* stream : streams_of(current_device))
        if (stream->capture) return spoiled(*stream->capture, cudaErrorStreamCaptureUnsupported);
    finish_device(current_device);
    return trouble();
}

// ---- events -------------------------------------------------------------------------------------------------------

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    auto* event = new Event;
    event->is_timed = !(flags & cudaEventDisableTiming);
    *handle = (cudaEvent_t)event;
    return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    Lock lock;
    delete (Event*)handle;
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
    Lock lock;
    Stream* stream = stream_of(on);
    if (!stream || !handle) return failed(cudaErrorInvalidResourceHandle);
    Event& event = *(Event*)handle;
    if (stream->capture) {
        event.stream = stream, event.number = 0, event.capture = stream->capture, event.seen = stream->seen;
        return cudaSuccess;
    }
    auto when = event.when = std::make_shared<std::chrono::steady_clock::time_point>();
    if (cudaError_t error = put(on, [when] { *when = std::chrono::steady_clock::now(); })) return error;
    event.stream = stream, event.number = stream->num_put, event.capture = nullptr, event.seen.clear();
    return cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t on, unsigned) {
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream || !on) return failed(cudaErrorInvalidResourceHandle);
    Event& event = *(Event*)on;
    if (event.capture && !event.capture->is_valid) return failed(cudaErrorStreamCaptureInvalidated);
    if (stream->capture && stream->capture != event.capture)
        return event.stream ? spoiled(*stream->capture, cudaErrorStreamCaptureIsolation) : cudaSuccess;
    if (event.capture) {                                             // the stream is captured from now on
        stream->capture = event.capture;
        stream->capture->members.insert(stream);
        merge(stream->seen, event.seen);
        return cudaSuccess;
    }
    if (is_done(event)) return cudaSuccess;
    Stream* other = event.stream;
    return put(handle, [other, number = event.number] { finish_until(*other, number); });
}

API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    Lock lock;
    Event& event = *(Event*)handle;
    if (event.capture) return failed(cudaErrorCapturedEvent);
    if (event.stream) finish_until(*event.stream, event.number);
    return trouble();
}

API cudaError_t cudaEventQuery(cudaEvent_t handle) {
    Lock lock;
    Event& event = *(Event*)handle;
    if (event.capture) return failed(cudaErrorCapturedEvent);
    if (cudaError_t error = refuse_under_capture()) return error;
    if (!is_done(event)) do_next(*event.stream);
    return is_done(event) ? trouble() : cudaErrorNotReady;
}

API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    Lock lock;
    Event *a = (Event*)start, *b = (Event*)end;
    if (!a->stream || !b->stream || !a->is_timed || !b->is_timed) return failed(cudaErrorInvalidResourceHandle);
    if (!is_done(*a) || !is_done(*b)) return failed(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(*b->when - *a->when).count();
    return cudaSuccess;
}

// ---- captures and graphs --------------------------------------------------------------------------------------------

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    if (is_null(stream)) return failed(cudaErrorStreamCaptureUnsupported);
    if (stream->capture) return failed(cudaErrorIllegalState);
    stream->capture.reset(new Capture{stream, mode, std::this_thread::get_id(), {}, {stream}});
    stream->seen.clear();
    return cudaSuccess;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    Lock lock;
    Stream* stream = stream_of(handle);
    *graph = nullptr;
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    auto capture = stream->capture;
    if (!capture) return failed(cudaErrorIllegalState);
    if (capture->origin != stream) return failed(cudaErrorStreamCaptureUnmatched);
    bool is_joined = true;
    for (Stream* member : capture->members) {
        is_joined = is_joined && stream->seen[member] >= member->seen[member];
        member->capture.reset();
    }
    if (!capture->is_valid) return failed(cudaErrorStreamCaptureInvalidated);
    capture->is_valid = false;                                       // events in it are of no use any more
    if (!is_joined) return failed(cudaErrorStreamCaptureUnjoined);
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
        return failed(cudaErrorStreamCaptureWrongThread);
    *graph = (cudaGraph_t) new Graph{capture->works};
    return cudaSuccess;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    Lock lock;
    Stream* stream = stream_of(handle);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    if (cudaError_t error = refuse_null_stream(stream)) return error;
    *status = !stream->capture             ? cudaStreamCaptureStatusNone
              : stream->capture->is_valid ? cudaStreamCaptureStatusActive
                                           : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    *made = (cudaGraphExec_t) new Graph(*(Graph*)graph);
    return cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
    if (is_captured(stream)) return failed(cudaErrorNotSupported);
    return put(stream, [works = ((Graph*)handle)->works] {
        for (const Work& work : works) work();
    });
}
API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete (Graph*)graph;
    return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete (Graph*)graph;
    return cudaSuccess;
}

// ---- errors -------------------------------------------------------------------------------------------------------

API cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

}  // namespace software_cuda

// For libraries that compute on streams: f(copy of the data) is done in the order of the stream. Returns an error of CUDA.
API int software_cuda_put(void* stream, void (*f)(void*), const void* data, size_t num_bytes) {
    auto copy = std::make_shared<std::vector<char>>((const char*)data, (const char*)data + num_bytes);
    return software_cuda::put((cudaStream_t)stream, [=] { f(copy->data()); });
}
