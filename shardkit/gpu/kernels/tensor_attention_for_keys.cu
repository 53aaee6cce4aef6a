// Gradients of keys and values by causal attention on tensor cores (arXiv 2205.14135, 2307.08691). What the arrays are:
// attention.cu.
//
//   keys and values are held, queries and gradients pass, head after head of the group that shares the keys: scores stand turned,
//   weights = keys queries^T, for_values += weights gradients, for_scores = values gradients^T, for_keys += for_scores queries.
//   A block sums COLUMNS of the head's columns. With two STAGES the next tiles are copied while these are multiplied.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tensor_attention_for_keys(ARRAY(const STORED, gradient), ARRAY(const STORED, q), ARRAY(const STORED, k),
                          ARRAY(const STORED, v), const float* log_sums, const float* along, ARRAY(STORED, for_k),
                          ARRAY(STORED, for_v), int num_heads, int num_key_heads, int num_queries, int num_keys,
                          int dim, double scale, int first, int lowest) {
    extern __shared__ __align__(16) STORED memory[];
    STORED *keys = memory, *values = keys + HELD_SIZE, *passing = values + HELD_SIZE;
    float* numbers = (float*)(passing + STAGES * 2 * TILE_SIZE);     // log_sums and along of the passing queries
    const int slices = (DIM + COLUMNS - 1) / COLUMNS, slice = blockIdx.x % slices;
    const int from = slice < slices - 1 ? slice * COLUMNS : DIM - COLUMNS;  // the last two may have columns in common
    Place<int> here = place<int>(blockIdx.x / slices, num_key_heads, num_keys, HELD, false);  // the first keys are seen by most queries
    int group = num_heads / num_key_heads, unseen = here.first - first, own = here.first + threadIdx.y * OWN;
    int begin = unseen > 0 ? unseen / TILE * TILE : 0, stop = seeing_queries(here.first, HELD, num_queries, lowest);
    int tiles = begin < stop ? (stop - begin + TILE - 1) / TILE : 0, count = group * tiles;
    auto bring = [&](int number) {
        int head = here.head * group + number / tiles, start = begin + number % tiles * TILE;
        STORED* to = passing + number % STAGES * 2 * TILE_SIZE;
        float* numbers_to = numbers + number % STAGES * 2 * TILE;
        copy_tile<TILE>(to, AT(q, here.sample, head), q_row, start, num_queries, dim);
        copy_tile<TILE>(to + TILE_SIZE, AT(gradient, here.sample, head), gradient_row, start, num_queries, dim);
        copy_numbers(numbers_to, log_sums + (here.sample * num_heads + head) * num_queries, start, num_queries);
        copy_numbers(numbers_to + TILE, along + (here.sample * num_heads + head) * num_queries, start, num_queries);
    };
    copy_tile<HELD>(keys, AT(k, here.sample, here.head), k_row, here.first, num_keys, dim);
    copy_tile<HELD>(values, AT(v, here.sample, here.head), v_row, here.first, num_keys, dim);
    if (count) bring(0);
    Sums for_keys = {}, for_values = {};
    for (int number = 0; number < count; number++) {
        await_copies();
        __syncthreads();
        if (STAGES == 2 && number + 1 < count) bring(number + 1);
        const STORED *queries = passing + number % STAGES * 2 * TILE_SIZE, *gradients = queries + TILE_SIZE;
        const float* log_sum = numbers + number % STAGES * 2 * TILE;
        int start = begin + number % tiles * TILE;
        int before = own - first - start, last = own - lowest - start;  // the queries before and behind these do not see own row 0
        if (before < TILE && last + OWN > 0) {
            Scores weights, for_scores;
            multiply(weights, keys + threadIdx.y * OWN * ROW, queries);
            make_logarithms(weights, scale * LOG_E, [&](int, int, int n, int e) { return log_sum[column_of(n, e)] * LOG_E; },
                            before + OWN - 1 > 0 || last < TILE - 1,
                            [&](int row, int column) { return column < before + row || column > last + row; });
            make_weights(weights);
            add_product(for_values, weights, gradients + from);
            multiply(for_scores, values + threadIdx.y * OWN * ROW, gradients);
            make_gradients(for_scores, weights, [&](int, int, int n, int e) { return log_sum[TILE + column_of(n, e)]; });
            add_product(for_keys, for_scores, queries + from);
        }
        if (STAGES == 1) {
            __syncthreads();
            if (number + 1 < count) bring(number + 1);
        }
    }
    store_sums(AT(for_v, here.sample, here.head), for_v_row, for_values, [](int, int) { return 1.0f; }, own, num_keys, from, dim);
    store_sums(AT(for_k, here.sample, here.head), for_k_row, for_keys, [&](int, int) { return (float)scale; }, own, num_keys, from, dim);
}
