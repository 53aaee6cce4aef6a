// Softmax along rows [num_rows, width] with its gradient, cross-entropy with its gradient.

// The largest number so far and the sum of exp(x - largest): one pass over a row finds both (arXiv 1805.02867).
struct Soft { real top, total; };

__device__ __forceinline__ Soft crossed(Soft x, int pattern) { return {crossed(x.top, pattern), crossed(x.total, pattern)}; }

constexpr float LOG_E = 1.4426950408889634f;                         // of base 2

// Of halves, the 11 or 8 bits hide the error of the approximation.
__device__ __forceinline__ real power_of_e(real x, real top) {       // exp(x - top)
    if constexpr (sizeof(STORED) == 2) return power_of_2(((float)x - (float)top) * LOG_E);
    else return exp_of(x - top);
}

// exp(x - top), and 1 where both are minus infinity
__device__ __forceinline__ real weight(real x, real top) { return x == top ? (real)1 : power_of_e(x, top); }

struct Join {
    __device__ __forceinline__ Soft operator()(Soft a, Soft b) const {
        real top = larger(a.top, b.top);
        return {top, a.total * weight(a.top, top) + b.total * weight(b.top, top)};
    }
};

__device__ __forceinline__ Soft soft_of_row(const STORED* x, long long width) {
    Soft soft = {-infinity(), 0};
    for_packs(width, [&](long long j, long long count) {
        real a[PACK], top = soft.top;
        load(a, x + j, count);
        for (int k = 0; k < PACK; k++)
            if (k < count) top = larger(top, a[k]);
        soft.total *= weight(soft.top, top);
        real finite = top == -infinity() ? 0 : top;
        for (int k = 0; k < PACK; k++)
            if (k < count) soft.total += power_of_e(a[k], finite);
        soft.top = top;
    });
    return over_row(soft, Join());
}

extern "C" __global__ void __launch_bounds__(1024) softmax(const STORED* x, STORED* out, long long num_rows, long long width) {
    long long row = row_number();
    if (row >= num_rows) return;
    x += row * width, out += row * width;
    Soft soft = soft_of_row(x, width);
    real times = 1 / soft.total;
    for_packs(width, [&](long long j, long long count) {
        real a[PACK];
        load(a, x + j, count);
        for (int k = 0; k < PACK; k++) {
            a[k] = power_of_e(a[k], soft.top);
            if constexpr (sizeof(STORED) == 2) a[k] *= times;
            else a[k] /= soft.total;
        }
        store(out + j, a, count);
    });
}

extern "C" __global__ void __launch_bounds__(1024)
softmax_backward(const STORED* gradient, const STORED* y, STORED* out, long long num_rows, long long width) {
    long long row = row_number();
    if (row >= num_rows) return;
    gradient += row * width, y += row * width, out += row * width;
    real sum = 0, g[PACK], a[PACK];
    for_packs(width, [&](long long j, long long count) {
        load(g, gradient + j, count);
        load(a, y + j, count);
        for (int k = 0; k < PACK; k++) sum = fused(g[k], a[k], sum);
    });
    sum = sum_over_row(sum);
    for_packs(width, [&](long long j, long long count) {
        load(g, gradient + j, count);
        load(a, y + j, count);
        for (int k = 0; k < PACK; k++) a[k] *= g[k] - sum;
        store(out + j, a, count);
    });
}

// counts may be null: all rows count. A target outside [0, width) stands in columns that others hold.
extern "C" __global__ void __launch_bounds__(1024)
cross_entropy(const STORED* logits, const long long* targets, const unsigned char* counts, real* losses, real* log_sums,
              long long num_rows, long long width) {
    long long row = row_number();
    if (row >= num_rows) return;
    const STORED* x = logits + row * width;
    Soft soft = soft_of_row(x, width);
    if (threadIdx.x != 0) return;
    real log_sum = soft.top + log_of(soft.total);
    long long target = targets[row];
    log_sums[row] = log_sum;
    losses[row] = counts && !counts[row] ? 0 : target >= 0 && target < width ? log_sum - widened(x[target]) : log_sum;
}

// The factor is the number at factor_at if that is not null.
extern "C" __global__ void __launch_bounds__(1024)
cross_entropy_backward(const real* factor_at, double factor, const STORED* logits, const long long* targets,
                       const real* log_sums, const unsigned char* counts, STORED* out, long long num_rows, long long width) {
    long long row = row_number();
    if (row >= num_rows) return;
    real times = factor_at ? *factor_at : (real)factor, log_sum = log_sums[row];
    long long target = targets[row];
    bool is_counted = !counts || counts[row];
    for_packs(width, [&](long long j, long long count) {
        real a[PACK];
        load(a, logits + row * width + j, count);
        for (int k = 0; k < PACK; k++) {
            real p = power_of_e(a[k], log_sum);
            a[k] = is_counted ? (j + k == target ? p - 1 : p) * times : 0;
        }
        store(out + row * width + j, a, count);
    });
}
