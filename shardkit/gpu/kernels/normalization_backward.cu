// Gradients of layer norm and RMS norm. A block takes a piece of `rows` rows; each thread keeps its columns of the sums over
// rows in registers, PACKS packs of them, so the width is at most blockDim.x PACKS PACK.

// mean is null for RMS norm. What is null among the results is not wanted; the parts are [pieces, width].
extern "C" __global__ void __launch_bounds__(512)
norm_backward(const STORED* gradient, const STORED* x, const STORED* weight, const real* mean, const real* inverse, STORED* for_x,
              real* for_weight, real* for_bias, long long num_rows, long long width, long long rows) {
    real weight_sum[PACKS][PACK] = {}, bias_sum[PACKS][PACK] = {};
    real n[PACKS][PACK], g[PACKS][PACK], w[PACKS][PACK];
    long long piece = blockIdx.x, step = (long long)blockDim.x * PACK;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        long long j = threadIdx.x * PACK + p * step;
        load(w[p], weight + j, width - j);
    }
    for (long long row = piece * rows; row < (piece + 1) * rows && row < num_rows; row++) {
        real middle = mean ? mean[row] : 0, scale = inverse[row], level = 0, along = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            long long j = threadIdx.x * PACK + p * step, count = width - j;
            if (count <= 0) break;
            load(n[p], x + row * width + j, count);
            load(g[p], gradient + row * width + j, count);
#pragma unroll
            for (int k = 0; k < PACK; k++) {
                n[p][k] = (n[p][k] - middle) * scale;
                if (for_weight) weight_sum[p][k] += g[p][k] * n[p][k];
                if (for_bias) bias_sum[p][k] += g[p][k];
                g[p][k] *= w[p][k];
                level += g[p][k];
                along += g[p][k] * n[p][k];
            }
        }
        if (!for_x) continue;
        level = mean ? sum_over_row(level) / (real)width : 0;
        along = sum_over_row(along) / (real)width;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            long long j = threadIdx.x * PACK + p * step, count = width - j;
            if (count <= 0) break;
#pragma unroll
            for (int k = 0; k < PACK; k++) g[p][k] = (g[p][k] - level - n[p][k] * along) * scale;
            store(for_x + row * width + j, g[p], count);
        }
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        for (int k = 0; k < PACK; k++) {
            long long j = threadIdx.x * PACK + p * step + k;
            if (j < width && for_weight) for_weight[piece * width + j] = weight_sum[p][k];
            if (j < width && for_bias) for_bias[piece * width + j] = bias_sum[p][k];
        }
}
