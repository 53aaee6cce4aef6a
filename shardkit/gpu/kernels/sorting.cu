// The places 0 .. n-1 of ids [n] in the order of the ids, equal ids in the order they came: a radix sort from the lowest digits on.
// All sizes are known before it runs. A warp is a part: it has `span` ids, and blocks of PARTS_OF_BLOCK parts.
//
// order [n] is what the digits before have given; null: 0 .. n-1. counts [parts, DIGITS]: how often a part has each digit.

constexpr int DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, PARTS_OF_BLOCK = 8;

// each(place, its digit, lanes of this warp with the same digit) for the ids of this warp, 32 at a time; a lane without an id comes
// along with no lanes.
template <class Each>
__device__ __forceinline__ void
for_digits(const long long* ids, const long long* order, long long n, long long span, int shift, Each each) {
    long long start = (blockIdx.x * (long long)PARTS_OF_BLOCK + threadIdx.y) * span;
    for (long long first = start; first < start + span && first < n; first += 32) {
        long long i = first + threadIdx.x;
        bool is_there = i < start + span && i < n;
        long long place = is_there ? order ? order[i] : i : 0;
        int digit = is_there ? (ids[place] >> shift) & (DIGITS - 1) : 0;
        unsigned alike = __ballot_sync(ALL_LANES, is_there);
        for (int bit = 0; bit < DIGIT_BITS; bit++) {
            bool is_set = digit >> bit & 1;
            unsigned votes = __ballot_sync(ALL_LANES, is_set);
            alike &= is_set ? votes : ~votes;
        }
        each(place, digit, is_there ? alike : 0);
        __syncwarp();
    }
}

__device__ __forceinline__ int lanes_below(unsigned lanes) { return __popc(lanes & ((1u << threadIdx.x) - 1)); }

extern "C" __global__ void __launch_bounds__(256)
count_digits(const long long* ids, const long long* order, int* counts, long long n, long long span, int shift) {
    __shared__ int found[PARTS_OF_BLOCK][DIGITS];
    for (int digit = threadIdx.x; digit < DIGITS; digit += 32) found[threadIdx.y][digit] = 0;
    __syncwarp();
    for_digits(ids, order, n, span, shift, [&](long long, int digit, unsigned alike) {
        if (alike && lanes_below(alike) == 0) found[threadIdx.y][digit] += __popc(alike);
    });
    for (int digit = threadIdx.x; digit < DIGITS; digit += 32)
        counts[(blockIdx.x * (long long)PARTS_OF_BLOCK + threadIdx.y) * DIGITS + digit] = found[threadIdx.y][digit];
}

extern "C" __global__ void __launch_bounds__(256)
place_by_digit(const long long* ids, const long long* order, const int* counts, long long* out, long long n, long long span,
               int shift) {
    __shared__ long long next[PARTS_OF_BLOCK][DIGITS];
    __shared__ long long before[DIGITS];
    int digit = threadIdx.y * 32 + threadIdx.x, num_parts = gridDim.x * PARTS_OF_BLOCK;
    long long total = 0;
    for (int part = 0; part < num_parts; part++) {                   // of one digit: those of earlier parts come first
        int here = part - (int)blockIdx.x * PARTS_OF_BLOCK;
        if (here >= 0 && here < PARTS_OF_BLOCK) next[here][digit] = total;
        total += counts[(long long)part * DIGITS + digit];
    }
    before[digit] = total;
    for (int step = 1; step < DIGITS; step *= 2) {                   // sums over all digits up to this one
        __syncthreads();
        long long more = digit >= step ? before[digit - step] : 0;
        __syncthreads();
        before[digit] += more;
    }
    for (int part = 0; part < PARTS_OF_BLOCK; part++) next[part][digit] += before[digit] - total;
    __syncthreads();
    for_digits(ids, order, n, span, shift, [&](long long place, int digit, unsigned alike) {
        int rank = lanes_below(alike);
        long long start = next[threadIdx.y][digit];
        if (alike) out[start + rank] = place;
        __syncwarp();                                                // all have read it
        if (alike && rank == 0) next[threadIdx.y][digit] = start + __popc(alike);
    });
}

// starts [num_rows + 1]: how many ids are smaller than each row's number. One thread searches for one row.
extern "C" __global__ void __launch_bounds__(256)
starts_of_rows(const long long* ids, const long long* order, long long* starts, long long n, long long num_rows) {
    long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row > num_rows) return;
    long long low = 0;
    for (long long high = n; low < high;) {
        long long middle = (low + high) / 2;
        if (ids[order[middle]] < row) low = middle + 1;
        else high = middle;
    }
    starts[row] = low;
}
