// Causal attention on tensor cores, forward (arXiv 2205.14135, 2307.08691). What the arrays are: attention.cu.
//
//   queries are held, keys and values pass         copy of values   ->  multiply, queries keys^T
//   [HELD, D]                 [TILE, D]            copy of keys     ->  softmax so far, add_product, weights values
//                                                  (of the next tile)
// The logarithm of the base is 2 inside, since that is the power that GPUs compute; log_sums are natural ones.

constexpr float LEAST = -3e38f;                                      // finite, for rows that see no key of the first tile

struct Larger {
    __device__ __forceinline__ float operator()(float a, float b) const { return larger(a, b); }
};

// Over the four lanes that hold a row.
template <class Join> __device__ __forceinline__ float over_lanes(float x, Join join) {
    x = join(x, crossed(x, 1));
    return join(x, crossed(x, 2));
}

// Turns the scores of a tile, as powers of 2, into weights, and sums so far into what they are by the new maxima.
struct Softmax {
    float top[BLOCKS][2], total[BLOCKS][2];                          // of the row's scores; total: of the keys of this lane

    __device__ __forceinline__ void begin() {
        for (int i = 0; i < BLOCKS * 2; i++) top[i / 2][i % 2] = LEAST, total[i / 2][i % 2] = 0;
    }

    __device__ __forceinline__ void add(Scores& scores, Sums& sums) {
#pragma unroll
        for (int i = 0; i < BLOCKS * 2; i++) {
            const int b = i / 2, h = i % 2;
            float highest = top[b][h], added = 0;
#pragma unroll
            for (int j = 0; j < PIECES * 2; j++) highest = larger(highest, scores[b][j / 2][2 * h + j % 2]);
            highest = over_lanes(highest, Larger());
#pragma unroll
            for (int j = 0; j < PIECES * 2; j++) {
                float& score = scores[b][j / 2][2 * h + j % 2];
                added += score = power_of_2(score - highest);
            }
            float factor = power_of_2(top[b][h] - highest);
            total[b][h] = total[b][h] * factor + added;
            top[b][h] = highest;
#pragma unroll
            for (int c = 0; c < COLUMN_PIECES; c++) sums[b][c][2 * h] *= factor, sums[b][c][2 * h + 1] *= factor;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tensor_attention(ARRAY(const STORED, q), ARRAY(const STORED, k), ARRAY(const STORED, v), ARRAY(STORED, y), float* log_sums,
                 int num_heads, int num_key_heads, int num_queries, int num_keys, int dim,
                 double scale, int first, int lowest) {
    extern __shared__ __align__(16) STORED memory[];
    STORED *queries = memory, *keys = queries + HELD_SIZE, *values = keys + TILE_SIZE;
    Place<int> here = place<int>(blockIdx.x, num_heads, num_queries, HELD, true);
    int key_head = here.head / (num_heads / num_key_heads), own = here.first + threadIdx.y * OWN;
    int begin = first_key(here.first, lowest) / TILE * TILE, stop = seen_keys(here.first, HELD, num_queries, num_keys, first);
    copy_tile<HELD>(queries, AT(q, here.sample, here.head), q_row, here.first, num_queries, dim);
    copy_tile<TILE>(keys, AT(k, here.sample, key_head), k_row, begin, num_keys, dim);
    Sums sums = {};
    Softmax softmax;
    softmax.begin();
    for (int start = begin; start < stop; start += TILE) {
        bool is_seen = start <= last_key(own + OWN - 1, num_keys, first) && start + TILE > lowest + own;
        await_copies();
        __syncthreads();                                             // keys are there, and values have been read
        copy_tile<TILE>(values, AT(v, here.sample, key_head), v_row, start, num_keys, dim);
        Scores scores;
        if (is_seen) multiply(scores, queries + threadIdx.y * OWN * ROW, keys);
        await_copies();
        __syncthreads();                                             // values are there, and keys have been read
        if (start + TILE < stop) copy_tile<TILE>(keys, AT(k, here.sample, key_head), k_row, start + TILE, num_keys, dim);
        if (!is_seen) continue;
        int seen = last_key(own, num_keys, first) - start, last = num_keys - 1 - start;  // seen: by row 0
        int low = lowest + own - start;                              // the first key of row 0
        make_logarithms(scores, scale * LOG_E, [](int, int, int, int) { return 0.0f; }, seen < TILE - 1 || low + OWN > 1,
                        [&](int row, int column) { return column > seen + row || column > last || column < low + row; });
        softmax.add(scores, sums);
        add_product(sums, scores, values);
    }
    float factors[BLOCKS][2];
    for (int i = 0; i < BLOCKS * 2; i++) {
        const int b = i / 2, h = i % 2;
        int row = own + row_of(b, h);
        float total = over_lanes(softmax.total[b][h], Add());
        factors[b][h] = 1 / total;
        if (threadIdx.x % 4 == 0 && row < num_queries)
            log_sums[(here.sample * num_heads + here.head) * num_queries + row] =
                softmax.top[b][h] * 0.6931471805599453f + log_of(total);
    }
    store_sums(AT(y, here.sample, here.head), y_row, sums, [&](int b, int h) { return factors[b][h]; }, own, num_queries, 0, dim);
}
