// Tiles of attention for tensor cores: how a block copies them to shared memory, and how its warps multiply them.
//
//   held      HELD = WARPS x 16 BLOCKS rows, which stay; each warp has 16 BLOCKS of them, and the sums of these rows
//   passing   TILE rows at a time, read by all warps
//   scores    of a warp, [16 BLOCKS, TILE]: held rows times passing rows^T, in registers from product to product
//
// Lane 4 g + t of a warp holds of each 16 x 8 piece of scores and sums the rows g and g + 8, columns 2 t and 2 t + 1. Scores become
// the left operand of the next product where they are: of halves two neighbouring pieces are one operand; of TF32 a piece is one,
// if its columns 2 t and 2 t + 1 are called t and t + 4, and the right operand is read in the same order.
//
// PRODUCTS, of float32: 1 reads 10 bits behind the point. 3 splits x into its TF32 part and that of the rest, and leaves out
// only the product of both rests, 2^-22 of the whole; since tensor cores cut off what they add, the sum is rounded to
// the nearest after 32 of its terms.

constexpr int THREADS = 32 * WARPS, OWN = 16 * BLOCKS, HELD = WARPS * OWN;
constexpr int STEP = 32 / sizeof(STORED);                            // numbers along a row that one product takes
constexpr int ROW = DIM + PACK;                                      // so that rows 0 .. 7 lie in different banks
constexpr int PARTS = PRODUCTS == 3 ? 2 : 1;
constexpr int AT_ONCE = sizeof(STORED) == 4 ? (DIM % 32 ? 16 : 32) : DIM > 96 && DIM % 64 == 0 ? 64 : DIM;  // columns multiplied at once
constexpr int PIECES = TILE / 8, COLUMN_PIECES = COLUMNS / 8;
constexpr int PACKS = DIM / PACK, ACROSS = PACKS <= 2 ? 2 : PACKS <= 4 ? 4 : PACKS <= 8 ? 8 : PACKS <= 16 ? 16 : PACKS <= 32 ? 32 : 64;
constexpr int DOWN = THREADS / ACROSS;                               // copied at a time: DOWN rows, by ACROSS threads each
constexpr float LOG_E = 1.4426950408889634f;                       // of base 2
constexpr int HELD_SIZE = HELD * ROW, TILE_SIZE = TILE * ROW;

typedef float Piece[4];
typedef Piece Scores[BLOCKS][PIECES];
typedef Piece Sums[BLOCKS][COLUMN_PIECES];
template <int WORDS> struct Operand { unsigned part[PARTS][WORDS]; };
typedef Operand<4> Left;
typedef Operand<2> Right;
struct alignas(2 * sizeof(STORED)) Pair { STORED low, high; };

// ---- to shared memory ---------------------------------------------------------------------------------------------

// tile [ROWS, ROW] = rows first .. of x [num_rows, dim], zero where there are none; it is there after await_copies and a barrier
template <int ROWS> __device__ __forceinline__ void
copy_tile(STORED* tile, const STORED* x, long long stride, int first, int num_rows, int dim) {
    int thread = threadIdx.y * 32 + threadIdx.x, column = thread % ACROSS * PACK, row = thread / ACROSS;
    if (column >= DIM) return;
    int width = dim - column < PACK ? (dim > column ? dim - column : 0) : PACK;
    int rows = (num_rows - first < ROWS ? num_rows - first : ROWS) - row;
    const STORED* from = x + (first + row) * stride + column;
    STORED* to = tile + row * ROW + column;
    if (is_aligned(x) && stride % PACK == 0) {
        shared_address address = address_of(to);
#pragma unroll
        for (int r = 0; r < ROWS; r += DOWN)
            if (ROWS % DOWN == 0 || row + r < ROWS)
                copy_pack(address + r * ROW * sizeof(STORED), from + r * stride, r < rows ? width * sizeof(STORED) : 0);
    } else {
#pragma unroll 1
        for (int r = 0; row + r < ROWS; r += DOWN)
#pragma unroll 1
            for (int e = 0; e < PACK; e++) to[r * ROW + e] = r < rows && e < width ? from[r * stride + e] : STORED();
    }
}

// to [TILE] = x[first ..], zero from num on
__device__ __forceinline__ void copy_numbers(float* to, const float* x, int first, int num) {
    for (int i = threadIdx.y * 32 + threadIdx.x; i < TILE; i += THREADS)
        copy_word(address_of(to + i), first + i < num ? x + first + i : x, first + i < num ? 4 : 0);
}

// ---- operands -----------------------------------------------------------------------------------------------------

template <int WORDS> __device__ __forceinline__ Operand<WORDS> operand_of(const unsigned (&words)[WORDS]) {
    Operand<WORDS> parts;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        parts.part[0][i] = words[i];
        if constexpr (sizeof(STORED) == 4) parts.part[0][i] = as_tf32(bits_as_float(words[i]));
        if constexpr (PARTS == 2) parts.part[PARTS - 1][i] = as_tf32(bits_as_float(words[i]) - bits_as_float(parts.part[0][i]));
    }
    return parts;
}

__device__ __forceinline__ void multiply_add(Piece& sums, const Left& a, const Right& b) {
    if constexpr (PARTS == 2) {
        mma(STORED(), sums, a.part[PARTS - 1], b.part[0]);
        mma(STORED(), sums, a.part[0], b.part[PARTS - 1]);
    }
    mma(STORED(), sums, a.part[0], b.part[0]);
}

// Rows 0 .. 15 of a tile, columns first .. first + STEP.
__device__ __forceinline__ Left left_at(const STORED* rows, int first) {
    unsigned x[4];
    load_matrices(x, address_of(rows + threadIdx.x % 16 * ROW) + (first * sizeof(STORED) + threadIdx.x / 16 * 16));
    return operand_of(x);
}

// The transpose of rows 0 .. 7 and of rows 8 .. 15, columns first .. first + STEP.
__device__ __forceinline__ void load_rights(Right (&b)[2], const STORED* rows, int first) {
    unsigned x[4];
    int row = threadIdx.x % 8 + threadIdx.x / 16 * 8;
    load_matrices(x, address_of(rows + row * ROW) + (first * sizeof(STORED) + threadIdx.x / 8 % 2 * 16));
    b[0] = operand_of<2>({x[0], x[1]});
    b[1] = operand_of<2>({x[2], x[3]});
}

// Rows 0 .. STEP of columns 0 .. 7 and of 8 .. 15, in the order that left_of has.
__device__ __forceinline__ void load_turned_rights(Right (&b)[2], const STORED* rows) {
    if constexpr (sizeof(STORED) == 2) {
        unsigned x[4];
        load_turned_matrices(x, address_of(rows + threadIdx.x % 16 * ROW) + threadIdx.x / 16 * 16);
        b[0] = operand_of<2>({x[0], x[1]});
        b[1] = operand_of<2>({x[2], x[3]});
    } else {
        const STORED* here = rows + threadIdx.x % 4 * 2 * ROW + threadIdx.x / 4;
        b[0] = operand_of<2>({float_as_bits(widened(here[0])), float_as_bits(widened(here[ROW]))});
        b[1] = operand_of<2>({float_as_bits(widened(here[8])), float_as_bits(widened(here[ROW + 8]))});
    }
}

// Columns STEP * number .. of 16 rows of scores.
template <class T = STORED> __device__ __forceinline__ Left left_of(const Piece (&scores)[PIECES], int number) {
    if constexpr (sizeof(T) == 2) {
        const Piece &x = scores[2 * number], &y = scores[2 * number + 1];
        return operand_of<4>({pair_of(T(), x[0], x[1]), pair_of(T(), x[2], x[3]), pair_of(T(), y[0], y[1]),
                              pair_of(T(), y[2], y[3])});
    } else {
        const Piece& x = scores[number];
        return operand_of<4>({float_as_bits(x[0]), float_as_bits(x[2]), float_as_bits(x[1]), float_as_bits(x[3])});
    }
}

// ---- products -----------------------------------------------------------------------------------------------------

// scores += own rows of a held tile times the rows of a passing tile, transposed; the first AT_ONCE columns of both
__device__ __forceinline__ void add_scores(Scores& scores, const STORED* own, const STORED* passing) {
#pragma unroll
    for (int d = 0; d < AT_ONCE; d += STEP) {
        Left a[BLOCKS];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) a[b] = left_at(own + 16 * b * ROW, d);
#pragma unroll
        for (int n = 0; n < PIECES; n += 2) {
            Right right[2];
            load_rights(right, passing + 8 * n * ROW, d);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                multiply_add(scores[b][n], a[b], right[0]);
                multiply_add(scores[b][n + 1], a[b], right[1]);
            }
        }
    }
}

// The same over all columns, from zero on.
__device__ __forceinline__ void multiply(Scores& scores, const STORED* own, const STORED* passing) {
#pragma unroll
    for (int i = 0; i < BLOCKS * PIECES * 4; i++) scores[i / 4 / PIECES][i / 4 % PIECES][i % 4] = 0;
#pragma unroll 1
    for (int start = 0; start < DIM; start += AT_ONCE) {
        if constexpr (PARTS == 1) add_scores(scores, own + start, passing + start);
        else {
            Scores part = {};
            add_scores(part, own + start, passing + start);
#pragma unroll
            for (int i = 0; i < BLOCKS * PIECES * 4; i++)
                scores[i / 4 / PIECES][i / 4 % PIECES][i % 4] += part[i / 4 / PIECES][i / 4 % PIECES][i % 4];
        }
    }
}

// sums += scores times the columns of a passing tile from `passing` on
__device__ __forceinline__ void add_product(Sums& sums, const Scores& scores, const STORED* passing) {
    constexpr int STEPS = TILE / STEP;
    Left a[BLOCKS][STEPS];
#pragma unroll
    for (int i = 0; i < BLOCKS * STEPS; i++) a[i / STEPS][i % STEPS] = left_of(scores[i / STEPS], i % STEPS);
#pragma unroll
    for (int c = 0; c < COLUMN_PIECES; c += 2) {
        Piece part[BLOCKS][2];
#pragma unroll
        for (int i = 0; i < BLOCKS * 8; i++) part[i / 8][i / 4 % 2][i % 4] = PARTS == 2 ? 0 : sums[i / 8][c + i / 4 % 2][i % 4];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            Right right[2];
            load_turned_rights(right, passing + s * STEP * ROW + 8 * c);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                multiply_add(part[b][0], a[b][s], right[0]);
                multiply_add(part[b][1], a[b][s], right[1]);
            }
        }
#pragma unroll
        for (int i = 0; i < BLOCKS * 8; i++) {
            float &sum = sums[i / 8][c + i / 4 % 2][i % 4], added = part[i / 8][i / 4 % 2][i % 4];
            sum = PARTS == 2 ? sum + added : added;
        }
    }
}

// ---- rows and columns of a lane -----------------------------------------------------------------------------------

// Rows go by (b, h) and columns by (n, e): a lane has them in piece [b][n][2 h + e].
__device__ __forceinline__ int row_of(int b, int h) { return 16 * b + 8 * h + threadIdx.x / 4; }
__device__ __forceinline__ int column_of(int n, int e) { return 8 * n + threadIdx.x % 4 * 2 + e; }

// scores = 2-logarithms of weights, scale scores - log_sum(b, h, n, e); hidden, if is_cut, where is_hidden(row, column)
template <class LogSum, class IsHidden> __device__ __forceinline__ void
make_logarithms(Scores& scores, float scale, LogSum log_sum, bool is_cut, IsHidden is_hidden) {
#pragma unroll
    for (int i = 0; i < BLOCKS * PIECES * 4; i++) {
        const int b = i / 4 / PIECES, n = i / 4 % PIECES, h = i / 2 % 2, e = i % 2;
        scores[b][n][i % 4] = scores[b][n][i % 4] * scale - log_sum(b, h, n, e);
    }
    if (!is_cut) return;
#pragma unroll
    for (int i = 0; i < BLOCKS * PIECES * 4; i++) {
        const int b = i / 4 / PIECES, n = i / 4 % PIECES, h = i / 2 % 2, e = i % 2;
        if (is_hidden(row_of(b, h), column_of(n, e))) scores[b][n][i % 4] = -infinity();
    }
}

// Logarithms become weights.
__device__ __forceinline__ void make_weights(Scores& scores) {
#pragma unroll
    for (int i = 0; i < BLOCKS * PIECES * 4; i++) {
        float& score = scores[i / 4 / PIECES][i / 4 % PIECES][i % 4];
        score = power_of_2(score);
    }
}

// for_scores = weights (for_weights - level)
template <class Level> __device__ __forceinline__ void
make_gradients(Scores& for_weights, const Scores& weights, Level level) {
#pragma unroll
    for (int i = 0; i < BLOCKS * PIECES * 4; i++) {
        const int b = i / 4 / PIECES, n = i / 4 % PIECES, h = i / 2 % 2, e = i % 2;
        for_weights[b][n][i % 4] = weights[b][n][i % 4] * (for_weights[b][n][i % 4] - level(b, h, n, e));
    }
}

// x [.., dim], rows first .. = sums of this warp, times factor(b, h); sums begin at column `from`
template <class Factor> __device__ __forceinline__ void
store_sums(STORED* x, long long stride, const Sums& sums, Factor factor, int first, int num_rows, int from, int dim) {
    bool paired = (unsigned long long)x % (2 * sizeof(STORED)) == 0 && stride % 2 == 0;
#pragma unroll
    for (int i = 0; i < BLOCKS * 2; i++) {
        int b = i / 2, h = i % 2;
        int row = first + row_of(b, h);
        if (row >= num_rows) continue;
#pragma unroll
        for (int c = 0; c < COLUMN_PIECES; c++) {
            int column = from + column_of(c, 0);
            STORED low = rounded<STORED>(sums[b][c][2 * h] * factor(b, h));
            STORED high = rounded<STORED>(sums[b][c][2 * h + 1] * factor(b, h));
            STORED* to = x + row * stride + column;
            if (paired && column + 1 < dim) *(Pair*)to = {low, high};
            else {
                if (column < dim) to[0] = low;
                if (column + 1 < dim) to[1] = high;
            }
        }
    }
}
