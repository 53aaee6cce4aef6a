// Rotary positions: each pair (x[i], x[i + D/2]) of x [B, H, S, D] turned by the angle of its position, cos and sin [S, D/2].
// A block takes one position of one sample, all heads. Rows [D] lie in one piece, with any strides else.

extern "C" __global__ void __launch_bounds__(256)
rotary(const STORED* x, long long x_sample, long long x_head, long long x_row, const real* cosines, const real* sines, STORED* y,
       long long y_sample, long long y_head, long long y_row, long long num_heads, long long num_positions, long long half) {
    long long sample = blockIdx.x / num_positions, position = blockIdx.x % num_positions;
    x += sample * x_sample + position * x_row;
    y += sample * y_sample + position * y_row;
    int pairs = (int)(num_heads * half), width = (int)half;
    for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        int head = pair / width, i = pair % width;
        real first = widened(x[head * x_head + i]), second = widened(x[head * x_head + half + i]);
        real c = cosines[position * half + i], s = sines[position * half + i];
        y[head * y_head + i] = rounded<STORED>(first * c - second * s);
        y[head * y_head + half + i] = rounded<STORED>(second * c + first * s);
    }
}
