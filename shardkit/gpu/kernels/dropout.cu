// Dropout, with the numbers of random.py to the bit: Philox4x32-10, four elements from each counter.

struct Four { unsigned number[4]; };

__device__ __forceinline__ Four philox(unsigned long long counter, unsigned long long key) {
    unsigned c0 = (unsigned)counter, c1 = (unsigned)(counter >> 32), c2 = 0, c3 = 0;
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned high0 = __umulhi(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
        unsigned high1 = __umulhi(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// The numbers from this one on, with no index that is known only when it runs: arrays of such have to lie in memory.
__device__ __forceinline__ Four from_number(Four x, int first) {
    if (first & 2) x = {{x.number[2], x.number[3], x.number[0], x.number[1]}};
    if (first & 1) x = {{x.number[1], x.number[2], x.number[3], x.number[0]}};
    return x;
}

// each(first element, how many, their numbers) for every counter that elements [start, start + n) need
template <class Each>
__device__ __forceinline__ void for_counters(long long start, long long n, unsigned long long key, Each each) {
    long long last = (start + n + 3) / 4, step = (long long)gridDim.x * blockDim.x;
    for (long long c = start / 4 + blockIdx.x * (long long)blockDim.x + threadIdx.x; c < last; c += step) {
        long long begin = 4 * c - start, from = begin < 0 ? 0 : begin, stop = begin + 4 < n ? begin + 4 : n;
        each(from, (int)(stop - from), from_number(philox(c, key), (int)(from - begin)));
    }
}

extern "C" __global__ void __launch_bounds__(256)
dropout(const STORED* x, unsigned long long key, long long start, unsigned dropped, double scale, STORED* out, long long n) {
    struct alignas(4 * sizeof(STORED) > 16 ? 16 : 4 * sizeof(STORED)) Elements { STORED item[4]; };
    bool aligned = is_aligned(x) && is_aligned(out) && start % 4 == 0;
    for_counters(start, n, key, [&](long long i, int count, Four numbers) {
        Elements a;
        if (aligned && count == 4) a = *(const Elements*)(x + i);
        else
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (k < count) a.item[k] = x[i + k];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            real value = numbers.number[k] >= dropped ? widened(a.item[k]) * (real)scale : 0;
            if (k < count) a.item[k] = rounded<STORED>(value);
        }
        if (aligned && count == 4) *(Elements*)(out + i) = a;
        else
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (k < count) out[i + k] = a.item[k];
    });
}

extern "C" __global__ void __launch_bounds__(256)
dropout_mask(unsigned long long key, long long start, unsigned dropped, unsigned char* out, long long n) {
    for_counters(start, n, key, [&](long long i, int count, Four numbers) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < count) out[i + k] = numbers.number[k] >= dropped;
    });
}
