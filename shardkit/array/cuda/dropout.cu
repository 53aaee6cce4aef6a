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

// each(first element, lane of its number, how many, the numbers) for every counter that elements [start, start + n) need
template <class Each>
__device__ __forceinline__ void for_counters(long long start, long long n, unsigned long long key, Each each) {
    long long last = (start + n + 3) / 4, step = (long long)gridDim.x * blockDim.x;
    for (long long c = start / 4 + blockIdx.x * (long long)blockDim.x + threadIdx.x; c < last; c += step) {
        long long begin = 4 * c - start, from = begin < 0 ? 0 : begin, stop = begin + 4 < n ? begin + 4 : n;
        each(from, (int)(from - begin), (int)(stop - from), philox(c, key));
    }
}

extern "C" __global__ void __launch_bounds__(256)
dropout(const STORED* x, unsigned long long key, long long start, unsigned dropped, double scale, STORED* out, long long n) {
    struct alignas(4 * sizeof(STORED) > 16 ? 16 : 4 * sizeof(STORED)) Elements { STORED item[4]; };
    bool aligned = is_aligned(x) && is_aligned(out) && start % 4 == 0;
    for_counters(start, n, key, [&](long long i, int lane, int count, Four numbers) {
        Elements a;
        if (aligned && count == 4) a = *(const Elements*)(x + i);
        else
            for (int k = 0; k < count; k++) a.item[k] = x[i + k];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            real value = numbers.number[lane + k & 3] >= dropped ? widened(a.item[k]) * (real)scale : 0;
            if (k < count) a.item[k] = rounded<STORED>(value);
        }
        if (aligned && count == 4) *(Elements*)(out + i) = a;
        else
            for (int k = 0; k < count; k++) out[i + k] = a.item[k];
    });
}

extern "C" __global__ void __launch_bounds__(256)
dropout_mask(unsigned long long key, long long start, unsigned dropped, unsigned char* out, long long n) {
    for_counters(start, n, key, [&](long long i, int lane, int count, Four numbers) {
        for (int k = 0; k < count; k++) out[i + k] = numbers.number[lane + k & 3] >= dropped;
    });
}
