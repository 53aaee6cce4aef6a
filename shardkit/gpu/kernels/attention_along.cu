// along [B, H, S] = the sums of gradient y over D: blockDim.x lanes of a warp, a power of 2, for each
extern "C" __global__ void __launch_bounds__(256)
attention_along(ARRAY(const STORED, gradient), ARRAY(const STORED, y), real* along, long long num_samples, long long num_heads,
                long long num_queries, long long dim) {
    long long row = row_number(), query = row % num_queries, head = row / num_queries % num_heads;
    long long sample = row / (num_queries * num_heads);
    bool is_row = sample < num_samples;
    const STORED* g = AT(gradient, sample, head) + query * gradient_row;
    const STORED* x = AT(y, sample, head) + query * y_row;
    real sum = 0;
    for (long long d = threadIdx.x * PACK; is_row && d < dim; d += blockDim.x * PACK) {
        real a[PACK], b[PACK];
        load(a, g + d, dim - d);
        load(b, x + d, dim - d);
        for (int k = 0; k < PACK; k++) sum = fused(a[k], b[k], sum);
    }
    for (int pattern = blockDim.x / 2; pattern; pattern /= 2) sum += crossed(sum, pattern);
    if (is_row && threadIdx.x == 0) along[row] = sum;
}
