// along [B, H, S] = the sums of gradient y over D: a warp for each
extern "C" __global__ void __launch_bounds__(256)
attention_along(ARRAY(const STORED, gradient), ARRAY(const STORED, y), real* along, long long num_samples, long long num_heads,
                long long num_queries, long long dim) {
    long long row = row_number(), query = row % num_queries, head = row / num_queries % num_heads;
    long long sample = row / (num_queries * num_heads);
    if (sample >= num_samples) return;
    const STORED* g = AT(gradient, sample, head) + query * gradient_row;
    const STORED* x = AT(y, sample, head) + query * y_row;
    real sum = 0;
    for (long long d = threadIdx.x; d < dim; d += 32) sum = fused(widened(g[d]), widened(x[d]), sum);
    sum = sum_over_row(sum);
    if (threadIdx.x == 0) along[row] = sum;
}
