// Gradients of queries by causal attention on tensor cores (arXiv 2205.14135, 2307.08691). What the arrays are: attention.cu.
//
//   queries and gradients are held, keys and values pass: weights = queries keys^T, for_scores = gradients values^T,
//   sums += for_scores keys. With two STAGES the next tiles are copied while these are multiplied.
//
// The scores are made again here and in tensor_attention_for_keys.cu, so that nothing is added by atomics.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tensor_attention_for_queries(ARRAY(const STORED, gradient), ARRAY(const STORED, q), ARRAY(const STORED, k),
                             ARRAY(const STORED, v), const float* log_sums, const float* along, ARRAY(STORED, for_q),
                             int num_heads, int num_key_heads, int num_queries, int num_keys,
                             int dim, double scale, int first, int lowest) {
    extern __shared__ __align__(16) STORED memory[];
    STORED *queries = memory, *gradients = queries + HELD_SIZE, *passing = gradients + HELD_SIZE;
    Place<int> here = place<int>(blockIdx.x, num_heads, num_queries, HELD, true);
    int key_head = here.head / (num_heads / num_key_heads), at = (here.sample * num_heads + here.head) * num_queries;
    int own = here.first + threadIdx.y * OWN, stop = seen_keys(here.first, HELD, num_queries, num_keys, first);
    int begin = first_key(here.first, lowest) / TILE * TILE;
    auto bring = [&](int start) {
        STORED* to = passing + start / TILE % STAGES * 2 * TILE_SIZE;
        copy_tile<TILE>(to, AT(k, here.sample, key_head), k_row, start, num_keys, dim);
        copy_tile<TILE>(to + TILE_SIZE, AT(v, here.sample, key_head), v_row, start, num_keys, dim);
    };
    copy_tile<HELD>(queries, AT(q, here.sample, here.head), q_row, here.first, num_queries, dim);
    copy_tile<HELD>(gradients, AT(gradient, here.sample, here.head), gradient_row, here.first, num_queries, dim);
    bring(begin);
    float log_sum[BLOCKS][2], level[BLOCKS][2];
    for (int i = 0; i < BLOCKS * 2; i++) {
        int row = own + row_of(i / 2, i % 2);
        log_sum[i / 2][i % 2] = row < num_queries ? log_sums[at + row] * LOG_E : 0;
        level[i / 2][i % 2] = row < num_queries ? along[at + row] : 0;
    }
    Sums sums = {};
    for (int start = begin; start < stop; start += TILE) {
        await_copies();
        __syncthreads();                                             // this tile is there, and the one before has been read
        if (STAGES == 2 && start + TILE < stop) bring(start + TILE);
        const STORED *keys = passing + start / TILE % STAGES * 2 * TILE_SIZE, *values = keys + TILE_SIZE;
        if (start <= last_key(own + OWN - 1, num_keys, first) && start + TILE > lowest + own) {
            Scores weights, for_scores;
            multiply(weights, queries + threadIdx.y * OWN * ROW, keys);
            int seen = last_key(own, num_keys, first) - start, last = num_keys - 1 - start;  // seen: by row 0
            int low = lowest + own - start;                          // the first key of row 0
            make_logarithms(weights, scale * LOG_E, [&](int b, int h, int, int) { return log_sum[b][h]; },
                            seen < TILE - 1 || low + OWN > 1,
                            [&](int row, int column) { return column > seen + row || column > last || column < low + row; });
            make_weights(weights);
            multiply(for_scores, gradients + threadIdx.y * OWN * ROW, values);
            make_gradients(for_scores, weights, [&](int b, int h, int, int) { return level[b][h]; });
            add_product(sums, for_scores, keys);
        }
        if (STAGES == 1) {
            __syncthreads();
            if (start + TILE < stop) bring(start + TILE);
        }
    }
    store_sums(AT(for_q, here.sample, here.head), for_q_row, sums, [&](int, int) { return (float)scale; }, own, num_queries, 0, dim);
}
