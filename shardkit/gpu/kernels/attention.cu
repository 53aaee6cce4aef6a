// Causal attention by tiles of TILE queries x TILE keys, forward and backward (arXiv 2205.14135, 1805.02867): of float64, of all
// types on GPUs without tensor cores for them, and of heads too wide for those. The rest: tensor_attention.cu.
//
//   queries
//     |####\            |      only tiles with a visible score are computed, and a tile of scores exists at a time, in shared
//     |#####\           |      memory: a block of 16 x 16 threads goes from tile to tile with the maximum and the sum of each
//     |########\        |      row so far. Thread (x, y) holds the scores of queries y, y + 16, ... and keys x, x + 16, ...,
//     |#########\       |      and of sums over a tile the rows y, y + 16, ... and columns x, x + 16, ...
//     +-------- keys ---+
//
// q, y [B, H, S, D], k, v [B, KV, T, D] with rows [D] in one piece and any strides else; D <= DIM, a multiple of 16. Query i
// sees keys lowest + i .. first + i, as far as there are such. Nothing is added by atomics: the gradients of k and v are made by a kernel
// of their own, which goes through the queries of each tile of keys in order.

constexpr int WIDE = 16 / sizeof(real);                              // numbers in one load of shared memory
constexpr int ROW = DIM + WIDE, WEIGHT_ROW = TILE + WIDE;            // the gap keeps columns of threads in different banks
constexpr int R = TILE / 16, C = DIM / 16;
constexpr int TILE_SIZE = TILE * ROW;

constexpr real LEAST = (real)(sizeof(real) == 8 ? -1e300 : -3e38);

struct alignas(16) Wide { real item[WIDE]; };

__device__ __forceinline__ Wide wide_at(const real* from) { return *(const Wide*)from; }

// tile [TILE, ROW] = rows first .. of x [num_rows, dim], zero where there are none
__device__ __forceinline__ void
load_tile(real* tile, const STORED* x, long long stride, long long first, long long num_rows, long long dim) {
    for (int i = threadIdx.y * 16 + threadIdx.x; i < TILE * DIM; i += 256) {
        int row = i / DIM, column = i % DIM;
        bool is_there = first + row < num_rows && column < dim;
        tile[row * ROW + column] = is_there ? widened(x[(first + row) * stride + column]) : (real)0;
    }
}

// scores += queries keys^T
__device__ __forceinline__ void multiply(real (&scores)[R][R], const real* queries, const real* keys) {
#pragma unroll 4
    for (int d = 0; d < DIM; d += WIDE) {
        Wide a[R], b[R];
        for (int i = 0; i < R; i++) a[i] = wide_at(queries + (threadIdx.y + 16 * i) * ROW + d);
        for (int j = 0; j < R; j++) b[j] = wide_at(keys + (threadIdx.x + 16 * j) * ROW + d);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < R; j++)
                for (int e = 0; e < WIDE; e++) scores[i][j] = fused(a[i].item[e], b[j].item[e], scores[i][j]);
    }
}

// sums += weights rows, for weights [TILE, WEIGHT_ROW], rows [TILE, ROW]
__device__ __forceinline__ void add_product(real (&sums)[R][C], const real* weights, const real* rows) {
#pragma unroll 2
    for (int n = 0; n < TILE; n += WIDE) {
        Wide a[R];
        for (int i = 0; i < R; i++) a[i] = wide_at(weights + (threadIdx.y + 16 * i) * WEIGHT_ROW + n);
        for (int e = 0; e < WIDE; e++)
            for (int c = 0; c < C; c++) {
                real b = rows[(n + e) * ROW + threadIdx.x + 16 * c];
                for (int i = 0; i < R; i++) sums[i][c] = fused(a[i].item[e], b, sums[i][c]);
            }
    }
}

// sums += weights^T rows
__device__ __forceinline__ void add_turned_product(real (&sums)[R][C], const real* weights, const real* rows) {
#pragma unroll 4
    for (int n = 0; n < TILE; n++) {
        real a[R];
        for (int i = 0; i < R; i++) a[i] = weights[n * WEIGHT_ROW + threadIdx.y + 16 * i];
        for (int c = 0; c < C; c++) {
            real b = rows[n * ROW + threadIdx.x + 16 * c];
            for (int i = 0; i < R; i++) sums[i][c] = fused(a[i], b, sums[i][c]);
        }
    }
}

__device__ __forceinline__ void put(real* weights, const real (&scores)[R][R]) {
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) weights[(threadIdx.y + 16 * i) * WEIGHT_ROW + threadIdx.x + 16 * j] = scores[i][j];
}

__device__ __forceinline__ void
store_tile(STORED* x, long long stride, const real (&sums)[R][C], long long first, long long num_rows, long long dim) {
    for (int i = 0; i < R; i++)
        for (int c = 0; c < C; c++) {
            long long row = first + threadIdx.y + 16 * i, column = threadIdx.x + 16 * c;
            if (row < num_rows && column < dim) x[row * stride + column] = rounded<STORED>(sums[i][c]);
        }
}

// Over the 16 threads that hold a row of scores.
template <class Join> __device__ __forceinline__ real over_threads(real x, Join join) {
    for (int pattern = 8; pattern; pattern /= 2) x = join(x, crossed(x, pattern));
    return x;
}

struct Larger {
    __device__ __forceinline__ real operator()(real a, real b) const { return larger(a, b); }
};

extern "C" __global__ void __launch_bounds__(256)
attention(ARRAY(const STORED, q), ARRAY(const STORED, k), ARRAY(const STORED, v), ARRAY(STORED, y), real* log_sums,
          long long num_heads, long long num_key_heads, long long num_queries, long long num_keys, long long dim, double scale,
          long long first, long long lowest) {
    extern __shared__ __align__(16) real memory[];
    real *queries = memory, *keys = queries + TILE_SIZE, *values = keys + TILE_SIZE, *weights = values + TILE_SIZE;
    Place<long long> here = place<long long>(blockIdx.x, num_heads, num_queries, TILE, true);
    long long key_head = here.head / (num_heads / num_key_heads);
    real sums[R][C] = {}, top[R], total[R] = {};
    for (int i = 0; i < R; i++) top[i] = LEAST;                      // finite, for rows that see no key of the first tile
    load_tile(queries, AT(q, here.sample, here.head), q_row, here.first, num_queries, dim);
    long long stop = seen_keys(here.first, TILE, num_queries, num_keys, first);
    for (long long start = first_key(here.first, lowest) / TILE * TILE; start < stop; start += TILE) {
        __syncthreads();                                             // until the tiles before have been read
        load_tile(keys, AT(k, here.sample, key_head), k_row, start, num_keys, dim);
        load_tile(values, AT(v, here.sample, key_head), v_row, start, num_keys, dim);
        __syncthreads();
        real scores[R][R] = {};
        multiply(scores, queries, keys);
        for (int i = 0; i < R; i++) {
            long long query = here.first + threadIdx.y + 16 * i;
            int seen = last_key(query, num_keys, first) - start - threadIdx.x, low = lowest + query - start - threadIdx.x;
            real highest = top[i], added = 0;
            for (int j = 0; j < R; j++) {
                bool is_seen = 16 * j <= seen && 16 * j >= low;
                scores[i][j] = is_seen ? scores[i][j] * (real)scale : -infinity();
                highest = larger(highest, scores[i][j]);
            }
            highest = over_threads(highest, Larger());
            for (int j = 0; j < R; j++) added += scores[i][j] = exp_of(scores[i][j] - highest);
            real factor = exp_of(top[i] - highest);
            total[i] = total[i] * factor + over_threads(added, Add());
            top[i] = highest;
            for (int c = 0; c < C; c++) sums[i][c] *= factor;
        }
        put(weights, scores);
        __syncwarp();                                                // rows of weights are read by those who wrote them
        add_product(sums, weights, values);
    }
    for (int i = 0; i < R; i++) {
        long long row = here.first + threadIdx.y + 16 * i;
        for (int c = 0; c < C; c++) sums[i][c] /= total[i];
        if (threadIdx.x == 0 && row < num_queries)
            log_sums[(here.sample * num_heads + here.head) * num_queries + row] = top[i] + log_of(total[i]);
    }
    store_tile(AT(y, here.sample, here.head), y_row, sums, here.first, num_queries, dim);
}

// Of a tile: p = the probabilities, for_scores = the gradients of the scores before scaling, zero where a key is not seen.
__device__ __forceinline__ void
gradients_of_tile(real (&p)[R][R], real (&for_scores)[R][R], const real* queries, const real* keys, const real* gradients,
                  const real* values, const real* log_sums, const real* along, long long first_query, long long num_queries,
                  long long start, long long num_keys, double scale, long long first, long long lowest) {
    multiply(p, queries, keys);
    multiply(for_scores, gradients, values);
    for (int i = 0; i < R; i++) {
        long long query = first_query + threadIdx.y + 16 * i;
        bool is_there = query < num_queries;
        long long last = last_key(query, num_keys, first);
        real log_sum = is_there ? log_sums[query] : 0, level = is_there ? along[query] : 0;
        for (int j = 0; j < R; j++) {
            long long key = start + threadIdx.x + 16 * j;
            bool is_seen = is_there && key <= last && key >= lowest + query;
            p[i][j] = is_seen ? exp_of(p[i][j] * (real)scale - log_sum) : 0;
            for_scores[i][j] = is_seen ? p[i][j] * (for_scores[i][j] - level) * (real)scale : 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
attention_for_queries(ARRAY(const STORED, gradient), ARRAY(const STORED, q), ARRAY(const STORED, k), ARRAY(const STORED, v),
                      const real* log_sums, const real* along, ARRAY(STORED, for_q), long long num_heads,
                      long long num_key_heads, long long num_queries, long long num_keys, long long dim, double scale,
                      long long first, long long lowest) {
    extern __shared__ __align__(16) real memory[];
    real *queries = memory, *gradients = queries + TILE_SIZE, *keys = gradients + TILE_SIZE, *values = keys + TILE_SIZE;
    real* weights = values + TILE_SIZE;
    Place<long long> here = place<long long>(blockIdx.x, num_heads, num_queries, TILE, true);
    long long key_head = here.head / (num_heads / num_key_heads), at = (here.sample * num_heads + here.head) * num_queries;
    load_tile(queries, AT(q, here.sample, here.head), q_row, here.first, num_queries, dim);
    load_tile(gradients, AT(gradient, here.sample, here.head), gradient_row, here.first, num_queries, dim);
    real sums[R][C] = {};
    long long stop = seen_keys(here.first, TILE, num_queries, num_keys, first);
    for (long long start = first_key(here.first, lowest) / TILE * TILE; start < stop; start += TILE) {
        __syncthreads();
        load_tile(keys, AT(k, here.sample, key_head), k_row, start, num_keys, dim);
        load_tile(values, AT(v, here.sample, key_head), v_row, start, num_keys, dim);
        __syncthreads();
        real p[R][R] = {}, for_scores[R][R] = {};
        gradients_of_tile(p, for_scores, queries, keys, gradients, values, log_sums + at, along + at, here.first, num_queries,
                          start, num_keys, scale, first, lowest);
        put(weights, for_scores);
        __syncwarp();
        add_product(sums, weights, keys);
    }
    store_tile(AT(for_q, here.sample, here.head), for_q_row, sums, here.first, num_queries, dim);
}

extern "C" __global__ void __launch_bounds__(256)
attention_for_keys(ARRAY(const STORED, gradient), ARRAY(const STORED, q), ARRAY(const STORED, k), ARRAY(const STORED, v),
                   const real* log_sums, const real* along, ARRAY(STORED, for_k), ARRAY(STORED, for_v), long long num_heads,
                   long long num_key_heads, long long num_queries, long long num_keys, long long dim, double scale,
                   long long first, long long lowest) {
    extern __shared__ __align__(16) real memory[];
    real *queries = memory, *gradients = queries + TILE_SIZE, *keys = gradients + TILE_SIZE, *values = keys + TILE_SIZE;
    real* weights = values + TILE_SIZE;
    Place<long long> here = place<long long>(blockIdx.x, num_key_heads, num_keys, TILE, false);              // the first keys are seen by most queries
    long long group = num_heads / num_key_heads, unseen = here.first - first;
    long long stop = seeing_queries(here.first, TILE, num_queries, lowest);
    load_tile(keys, AT(k, here.sample, here.head), k_row, here.first, num_keys, dim);
    load_tile(values, AT(v, here.sample, here.head), v_row, here.first, num_keys, dim);
    real for_keys[R][C] = {}, for_values[R][C] = {};
    for (long long head = here.head * group; head < (here.head + 1) * group; head++) {
        long long at = (here.sample * num_heads + head) * num_queries;
        for (long long start = unseen > 0 ? unseen / TILE * TILE : 0; start < stop; start += TILE) {
            __syncthreads();
            load_tile(queries, AT(q, here.sample, head), q_row, start, num_queries, dim);
            load_tile(gradients, AT(gradient, here.sample, head), gradient_row, start, num_queries, dim);
            __syncthreads();
            real p[R][R] = {}, for_scores[R][R] = {};
            gradients_of_tile(p, for_scores, queries, keys, gradients, values, log_sums + at, along + at, start, num_queries,
                              here.first, num_keys, scale, first, lowest);
            put(weights, p);
            __syncthreads();
            add_turned_product(for_values, weights, gradients);
            __syncthreads();
            put(weights, for_scores);
            __syncthreads();
            add_turned_product(for_keys, weights, queries);
        }
    }
    store_tile(AT(for_k, here.sample, here.head), for_k_row, for_keys, here.first, num_keys, dim);
    store_tile(AT(for_v, here.sample, here.head), for_v_row, for_values, here.first, num_keys, dim);
}
