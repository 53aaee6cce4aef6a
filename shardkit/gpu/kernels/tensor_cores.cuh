// Instructions of tensor cores, and copies to shared memory that pass registers by: GPUs of compute capability 8.0 and later.
// Tests on CPUs provide functions of these names that follow the same pages of the PTX ISA (tests/stand_in/emulator).
//
// mma(type, c, a, b) is a product of a warp, c [16, 8] += a [16, k] b [k, 8] in float; k numbers take 32 bytes.
// Lane 4 g + t holds
//
//   a   x[0], x[1]   word t of the first 16 bytes of rows g and g + 8;  x[2], x[3]  word t of the second 16 bytes
//   b   x[0], x[1]   word t of the first and of the second 16 bytes of column g, along k
//   c   x[0], x[1]   columns 2 t and 2 t + 1 of row g;                  x[2], x[3]  the same of row g + 8
//
// load_matrices(x, row) reads four matrices of 8 rows of 16 bytes; lanes 8 i .. 8 i + 7 give the addresses of the rows of matrix i.
// Lane 4 g + t gets word t of row g of each, which is how a and b want them. load_turned_matrices gives it the halves in rows
// 2 t and 2 t + 1 of column g instead.

typedef unsigned shared_address;                                     // in bytes

#ifdef __CUDACC__

__device__ __forceinline__ shared_address address_of(const void* place) {
    shared_address address;
    asm("{ .reg .u64 x; cvta.to.shared.u64 x, %1; cvt.u32.u64 %0, x; }" : "=r"(address) : "l"(place));
    return address;
}

#define MMA(kind)                                                                                                     \
    asm("mma.sync.aligned." kind " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__device__ __forceinline__ void mma(bfloat_number, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}

__device__ __forceinline__ void mma(half_number, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    MMA("m16n8k16.row.col.f32.f16.f16.f32");
}

__device__ __forceinline__ void mma(float, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}

__device__ __forceinline__ void load_matrices(unsigned (&x)[4], shared_address row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row));
}

__device__ __forceinline__ void load_turned_matrices(unsigned (&x)[4], shared_address row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row));
}

// 16 bytes at addresses that are multiples of 16: `bytes` of them from memory, the rest zero. Those that start a copy see the
// result after await_copies(), other threads after a barrier that follows it.
__device__ __forceinline__ void copy_pack(shared_address to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(bytes) : "memory");
}

// The same of 4 bytes, all of them or zero.
__device__ __forceinline__ void copy_word(shared_address to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// To the nearest number of 10 bits behind the point, away from zero where two are as near.
__device__ __forceinline__ unsigned as_tf32(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ unsigned pair_of(bfloat_number, float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ unsigned pair_of(half_number, float low, float high) {
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

#endif
