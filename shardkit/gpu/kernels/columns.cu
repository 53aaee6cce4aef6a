// Sums over rows, always in the same order.

// Over pieces [blockIdx.y, num_pieces, width] -> [blockIdx.y, width]: each of 32 rows of threads takes every 32nd piece in order,
// then the 32 sums are added as a tree. Numbers are `real` on both sides.

extern "C" __global__ void __launch_bounds__(1024)
sum_pieces(const real* pieces, real* out, long long num_pieces, long long width) {
    __shared__ real sums[32][33];
    long long column = blockIdx.x * 32LL + threadIdx.x;
    pieces += blockIdx.y * num_pieces * width, out += blockIdx.y * width;
    real sum = 0;
    if (column < width)
        for (long long piece = threadIdx.y; piece < num_pieces; piece += 32) sum += pieces[piece * width + column];
    sums[threadIdx.x][threadIdx.y] = sum;
    __syncthreads();
    sum = sums[threadIdx.y][threadIdx.x];                            // now the threads of a warp hold one column
    for (int pattern = 16; pattern; pattern /= 2) sum += crossed(sum, pattern);
    column = blockIdx.x * 32LL + threadIdx.y;
    if (threadIdx.x == 0 && column < width) out[column] = sum;
}

// Sums over rows [num_rows, width], `step` numbers apart, of each of several matrices, `apart` numbers apart: a block takes a piece
// of `rows` rows of 32 packs of columns, parts [matrix, piece, width]. Each of its rows of threads takes every so many rows of the
// piece in order, then their sums are added in order.
extern "C" __global__ void __launch_bounds__(256)
sum_of_rows(const STORED* x, long long apart, long long step, real* parts, long long num_rows, long long width, long long rows) {
    __shared__ real sums[8][32][PACK + 1];
    long long j = (blockIdx.x * 32LL + threadIdx.x) * PACK, count = width - j, piece = blockIdx.y;
    long long stop = (piece + 1) * rows < num_rows ? (piece + 1) * rows : num_rows;
    real sum[PACK] = {};
    if (count > 0) {
        const STORED* from = x + blockIdx.z * apart + j;
#pragma unroll 4
        for (long long row = piece * rows + threadIdx.y; row < stop; row += 8) {
            real a[PACK];
            load(a, from + row * step, count);
#pragma unroll
            for (int k = 0; k < PACK; k++) sum[k] += a[k];
        }
    }
#pragma unroll
    for (int k = 0; k < PACK; k++) sums[threadIdx.y][threadIdx.x][k] = sum[k];
    __syncthreads();
    for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * PACK; i += 256) {
        long long column = blockIdx.x * 32LL * PACK + i;
        real total = 0;
        for (int y = 0; y < 8; y++) total += sums[y][i / PACK][i % PACK];
        if (column < width) parts[(blockIdx.z * (long long)gridDim.y + piece) * width + column] = total;
    }
}
