// GELU, SiLU, SwiGLU, sigmoid with their gradients, sums of two: one pass, 16 bytes at a time. Results may lie on inputs.

// 1 / (1 + exp(-x)), which goes to 0 and 1 without overflow. Of halves, the 11 or 8 bits hide the error of the approximations.
__device__ __forceinline__ real logistic(real x) {
    if constexpr (sizeof(STORED) == 2) return one_over(1 + power_of_2(x * -1.4426950408889634f));
    else return 1 / (1 + exp_of(-x));
}

// x/2 (1 + tanh u) is x / (1 + exp(-2u)), with 2u = x (TWICE + TWICE_CUBIC x^2)
constexpr real TWICE = 1.5957691216057308, TWICE_CUBIC = 0.07135481627260025;

__device__ __forceinline__ real twice_u(real x) { return x * fused(x * x, TWICE_CUBIC, TWICE); }

__device__ __forceinline__ real gelu_of(real x) {
    if constexpr (sizeof(STORED) == 2) return x * logistic(twice_u(x));
    else return x / (1 + exp_of(-twice_u(x)));
}

__device__ __forceinline__ real gelu_slope(real x) {
    real s = logistic(twice_u(x)), slope = fused(x * x, 3 * TWICE_CUBIC, TWICE);                       // 2u'
    return s * fused(x * (1 - s), slope, (real)1);
}

__device__ __forceinline__ real silu_slope(real x, real s) { return s * fused(x, 1 - s, (real)1); }

// ---- whole arrays [n] ----------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256) gelu(const STORED* x, STORED* out, long long n) {
    map(x, out, n, [](real x) { return gelu_of(x); });
}

extern "C" __global__ void __launch_bounds__(256) sum_of_two(const STORED* x, const STORED* y, STORED* out, long long n) {
    map(x, y, out, n, [](real x, real y) { return x + y; });
}

extern "C" __global__ void __launch_bounds__(256) sigmoid(const STORED* x, STORED* out, long long n) {
    map(x, out, n, [](real x) { return logistic(x); });
}

extern "C" __global__ void __launch_bounds__(256) silu(const STORED* x, STORED* out, long long n) {
    map(x, out, n, [](real x) { return x * logistic(x); });
}

extern "C" __global__ void __launch_bounds__(256)
gelu_backward(const STORED* gradient, const STORED* x, STORED* out, long long n) {
    map(gradient, x, out, n, [](real g, real x) { return g * gelu_slope(x); });
}

extern "C" __global__ void __launch_bounds__(256)
silu_backward(const STORED* gradient, const STORED* x, STORED* out, long long n) {
    map(gradient, x, out, n, [](real g, real x) { return g * silu_slope(x, logistic(x)); });
}

extern "C" __global__ void __launch_bounds__(256) swiglu(const STORED* gate, const STORED* up, STORED* out, long long n) {
    map(gate, up, out, n, [](real gate, real up) { return gate * logistic(gate) * up; });
}

extern "C" __global__ void __launch_bounds__(256)
swiglu_backward(const STORED* gradient, const STORED* gate, const STORED* up, STORED* for_gate, STORED* for_up, long long n) {
    for_all_packs(n, [&](long long i, long long count) {
        real g[PACK], a[PACK], b[PACK];
        load(g, gradient + i, count);
        load(a, gate + i, count);
        load(b, up + i, count);
        for (int j = 0; j < PACK; j++) {
            real s = logistic(a[j]), for_this = g[j] * b[j] * silu_slope(a[j], s);
            b[j] = g[j] * a[j] * s;
            a[j] = for_this;
        }
        store(for_gate + i, a, count);
        store(for_up + i, b, count);
    });
}

// ---- rows with a bias [width]: a block takes `rows` rows of 128 packs of columns ------------------------------------

extern "C" __global__ void __launch_bounds__(128)
bias_gelu(const STORED* x, const STORED* bias, STORED* out, long long num_rows, long long width, long long rows) {
    long long j = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * PACK, count = width - j;
    if (count <= 0) return;
    real shift[PACK];
    load(shift, bias + j, count);
    for (long long first = (long long)blockIdx.y * rows; first < num_rows; first += (long long)gridDim.y * rows) {
        for (long long row = first; row < first + rows && row < num_rows; row++) {
            real a[PACK];
            load(a, x + row * width + j, count);
            for (int k = 0; k < PACK; k++) a[k] = gelu_of(a[k] + shift[k]);
            store(out + row * width + j, a, count);
        }
    }
}

// parts [pieces, width], or null: the sum of the gradient over each piece of `rows` rows, in order. out may be null.
extern "C" __global__ void __launch_bounds__(128)
bias_gelu_backward(const STORED* gradient, const STORED* x, const STORED* bias, STORED* out, real* parts, long long num_rows,
                   long long width, long long rows) {
    long long j = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * PACK, count = width - j;
    if (count <= 0) return;
    real shift[PACK];
    load(shift, bias + j, count);
    for (long long first = (long long)blockIdx.y * rows; first < num_rows; first += (long long)gridDim.y * rows) {
        real sum[PACK] = {};
        for (long long row = first; row < first + rows && row < num_rows; row++) {
            real g[PACK], a[PACK];
            load(g, gradient + row * width + j, count);
            load(a, x + row * width + j, count);
            for (int k = 0; k < PACK; k++) {
                a[k] = g[k] * gelu_slope(a[k] + shift[k]);
                sum[k] += a[k];
            }
            if (out) store(out + row * width + j, a, count);
        }
        for (int k = 0; parts && k < PACK; k++)
            if (k < count) parts[first / rows * width + j + k] = sum[k];
    }
}
