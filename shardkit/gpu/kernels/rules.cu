// Optimizer rules in one pass: the operations of the reference in the same order, so the bits are the same too.

__device__ __forceinline__ real scaled(real gradient, real p, real decay, real gradient_scale) {
    real g = gradient * gradient_scale;
    return decay != 0 ? g + decay * p : g;
}

extern "C" __global__ void __launch_bounds__(256)
sgd(STORED* parameters, const STORED* gradients, double lr, double decay, double gradient_scale, long long n) {
    for_all_packs(n, [&](long long i, long long count) {
        real p[PACK], g[PACK];
        load(p, parameters + i, count);
        load(g, gradients + i, count);
        for (int k = 0; k < PACK; k++) p[k] -= (real)lr * scaled(g[k], p[k], decay, gradient_scale);
        store(parameters + i, p, count);
    });
}

extern "C" __global__ void __launch_bounds__(256)
momentum(STORED* parameters, const STORED* gradients, STORED* velocity, double lr, double beta, long long nesterov, double decay,
         double gradient_scale, long long n) {
    for_all_packs(n, [&](long long i, long long count) {
        real p[PACK], g[PACK], v[PACK];
        load(p, parameters + i, count);
        load(g, gradients + i, count);
        load(v, velocity + i, count);
        for (int k = 0; k < PACK; k++) {
            real scaled_g = scaled(g[k], p[k], decay, gradient_scale);
            v[k] = v[k] * (real)beta + scaled_g;
            p[k] -= (real)lr * (nesterov ? scaled_g + (real)beta * v[k] : v[k]);
        }
        store(velocity + i, v, count);
        store(parameters + i, p, count);
    });
}

// keep1 = 1 - beta1, keep2 = 1 - beta2; shrink is what parameters are multiplied with (1 unless the decay is decoupled)
extern "C" __global__ void __launch_bounds__(256)
adam(STORED* parameters, const STORED* gradients, STORED* m, STORED* v, double step_size, double root_correction, double keep1,
     double beta2, double keep2, double eps, double shrink, double decay, double gradient_scale, long long n) {
    for_all_packs(n, [&](long long i, long long count) {
        real p[PACK], g[PACK], first[PACK], second[PACK];
        load(p, parameters + i, count);
        load(g, gradients + i, count);
        load(first, m + i, count);
        load(second, v + i, count);
        for (int k = 0; k < PACK; k++) {
            real scaled_g = scaled(g[k], p[k], decay, gradient_scale);
            p[k] *= (real)shrink;
            first[k] += (real)keep1 * (scaled_g - first[k]);
            second[k] = second[k] * (real)beta2 + (real)keep2 * scaled_g * scaled_g;
            p[k] -= (real)step_size * first[k] / (root_of(second[k]) / (real)root_correction + (real)eps);
        }
        store(m + i, first, count);
        store(v + i, second, count);
        store(parameters + i, p, count);
    });
}

// keep1 = 1 - beta1, keep2 = 1 - beta2; the sign of zero and of NaN is that number
extern "C" __global__ void __launch_bounds__(256)
lion(STORED* parameters, const STORED* gradients, STORED* m, double lr, double keep1, double keep2, double shrink,
     double gradient_scale, long long n) {
    for_all_packs(n, [&](long long i, long long count) {
        real p[PACK], g[PACK], first[PACK];
        load(p, parameters + i, count);
        load(g, gradients + i, count);
        load(first, m + i, count);
        for (int k = 0; k < PACK; k++) {
            real change = g[k] * (real)gradient_scale - first[k];
            real mixed = first[k] + (real)keep1 * change;
            real sign = mixed > 0 ? (real)1 : mixed < 0 ? (real)-1 : mixed;
            p[k] = p[k] * (real)shrink - (real)lr * sign;
            first[k] += (real)keep2 * change;
        }
        store(m + i, first, count);
        store(parameters + i, p, count);
    });
}
