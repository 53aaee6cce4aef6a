// The sum over pieces [num_pieces, width] -> [width], always in the same order: each of 32 rows of threads takes every 32nd
// piece in order, then the 32 sums are added as a tree. Numbers are `real` on both sides.

extern "C" __global__ void __launch_bounds__(1024)
sum_pieces(const real* pieces, real* out, long long num_pieces, long long width) {
    __shared__ real sums[32][33];
    long long column = blockIdx.x * 32LL + threadIdx.x;
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
