// cuBLAS and cuBLASLt of the software CUDA: the products that shardkit and CuPy ask for, on memory that is the host's.
// Sources: the cuBLAS documentation on cublasGemmStridedBatchedEx and cublasLtMatmul; numbers of library_types.h, cublas_api.h and
// cublasLt.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
extern "C" int software_cuda_put(void* stream, void (*f)(void*), const void* data, size_t num_bytes);

namespace {

enum Status { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Type { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT = 14 };
enum Arithmetic { IN_FLOAT = 68, IN_DOUBLE = 70, IN_TF32 = 77 };

size_t bytes_of(int type) { return type == DOUBLE ? 8 : type == FLOAT ? 4 : 2; }
bool is_known(int type) { return type == FLOAT || type == DOUBLE || type == HALF || type == BFLOAT; }

template <class T> T read(const char* at) {
    T x;
    memcpy(&x, at, sizeof x);
    return x;
}
float of_bfloat(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    return read<float>((char*)&word);
}
uint16_t to_bfloat(float x) {
    uint32_t bits = read<uint32_t>((char*)&x);
    return x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

template <class T> T number_at(const char* at, int type) {
    switch (type) {
        case FLOAT: return read<float>(at);
        case DOUBLE: return read<double>(at);
        case HALF: return (float)read<_Float16>(at);
        default: return of_bfloat(read<uint16_t>(at));
    }
}
template <class T> void write(char* at, T x) { memcpy(at, &x, sizeof x); }
template <class T> void put_number(char* at, int type, T x) {
    switch (type) {
        case FLOAT: return write<float>(at, x);
        case DOUBLE: return write<double>(at, x);
        case HALF: return write<_Float16>(at, (_Float16)(float)x);
        default: return write<uint16_t>(at, to_bfloat(x));
    }
}

float in_tf32(float x) {
    if (!std::isfinite(x)) return x;
    uint32_t bits = read<uint32_t>((char*)&x) + 0x1000 & 0xFFFFE000u;
    return read<float>((char*)&bits);
}

// Columns of a matrix in memory, of which there may be several, evenly spaced.
struct Matrix {
    const char* data;
    int type;
    bool is_turned;
    int64_t column, step;                                            // elements between columns, and between matrices

    template <class T> T at(int number, int64_t row, int64_t col) const {
        int64_t place = is_turned ? row * column + col : col * column + row;
        return number_at<T>(data + bytes_of(type) * (number * step + place), type);
    }
    bool holds(int64_t rows, int64_t cols) const {
        return column >= std::max<int64_t>(1, is_turned ? cols : rows) && (uintptr_t)data % bytes_of(type) == 0;
    }
};

struct Product {                                                     // c = alpha a b + beta c + bias down each column
    int64_t m, n, k;
    int count, arithmetic;
    double alpha, beta;
    Matrix a, b, c, bias;                                            // bias.data: null where there is none
    uint64_t *workspace = nullptr, ticket = 0;

    template <class T> void compute() const {
        std::vector<T> left(m * k), sums(m);
        for (int number = 0; number < count; number++) {
            for (int64_t l = 0; l < k; l++)
                for (int64_t i = 0; i < m; i++) left[l * m + i] = operand<T>(a, number, i, l);
            for (int64_t j = 0; j < n; j++) {
                std::fill(sums.begin(), sums.end(), T(0));
                for (int64_t l = 0; l < k; l++) {
                    T x = operand<T>(b, number, l, j);
                    for (int64_t i = 0; i < m; i++) sums[i] += left[l * m + i] * x;
                }
                for (int64_t i = 0; i < m; i++) store(number, i, j, sums[i]);
            }
        }
    }
    template <class T> T operand(const Matrix& of, int number, int64_t row, int64_t col) const {
        T x = of.at<T>(number, row, col);
        return arithmetic == IN_TF32 ? (T)in_tf32(x) : x;
    }
    template <class T> void store(int number, int64_t i, int64_t j, T sum) const {
        T x = (T)alpha * sum;
        if (beta != 0) x += (T)beta * c.at<T>(number, i, j);
        if (bias.data) x += bias.at<T>(number, i, 0);
        put_number<T>((char*)c.data + bytes_of(c.type) * (number * c.step + j * c.column + i), c.type, x);
    }
    int refusal() const {
        bool is_double = arithmetic == IN_DOUBLE;
        if (arithmetic != IN_FLOAT && !is_double && arithmetic != IN_TF32) return NOT_SUPPORTED;
        if (!is_known(a.type) || a.type != b.type || is_double != (a.type == DOUBLE) || (arithmetic == IN_TF32 && a.type != FLOAT))
            return NOT_SUPPORTED;
        bool fits = m >= 0 && n >= 0 && k >= 0 && a.holds(m, k) && b.holds(k, n) && c.holds(m, n);
        return fits ? SUCCESS : INVALID_VALUE;
    }
    // Two kernels that meet in the workspace, as cuBLAS may launch them: what others write there meanwhile spoils the result.
    int launch(void* stream, void* space) {
        static std::atomic<uint64_t> launched{0};
        if (int status = refusal()) return status;
        workspace = (uint64_t*)space, ticket = ++launched;
        int error = software_cuda_put(stream, begin, this, sizeof *this) || software_cuda_put(stream, run, this, sizeof *this);
        return error ? EXECUTION_FAILED : SUCCESS;
    }
    static void begin(void* self) {
        const Product& product = *(const Product*)self;
        if (product.workspace) *product.workspace = product.ticket;
    }
    static void run(void* self) {
        Product& product = *(Product*)self;
        if (product.workspace && *product.workspace != product.ticket) product.alpha = NAN;
        product.arithmetic == IN_DOUBLE ? product.compute<double>() : product.compute<float>();
    }
};

double scale(const void* at, int arithmetic) { return arithmetic == IN_DOUBLE ? *(const double*)at : *(const float*)at; }

struct Handle {
    void *stream = nullptr, *workspace = nullptr;
    int math_mode = 0, pointer_mode = 0;
};

constexpr int IN_PEDANTIC_FLOAT = 69;

}  // namespace

// ---- cuBLAS -------------------------------------------------------------------------------------------------------

API int cublasCreate_v2(void** handle) { return *handle = new Handle, SUCCESS; }
API int cublasDestroy_v2(void* handle) { return delete (Handle*)handle, SUCCESS; }
API int cublasGetVersion_v2(void*, int* version) { return *version = 130000, SUCCESS; }
API int cublasSetStream_v2(void* handle, void* stream) {            // which takes the workspace away
    ((Handle*)handle)->stream = stream, ((Handle*)handle)->workspace = nullptr;
    return SUCCESS;
}
API int cublasGetStream_v2(void* handle, void** stream) { return *stream = ((Handle*)handle)->stream, SUCCESS; }
API int cublasSetWorkspace_v2(void* handle, void* workspace, size_t) {
    if ((uintptr_t)workspace % 256) return INVALID_VALUE;
    ((Handle*)handle)->workspace = workspace;
    return SUCCESS;
}
API int cublasSetMathMode(void* handle, int mode) { return ((Handle*)handle)->math_mode = mode, SUCCESS; }
API int cublasGetMathMode(void* handle, int* mode) { return *mode = ((Handle*)handle)->math_mode, SUCCESS; }
API int cublasSetPointerMode_v2(void* handle, int mode) { return ((Handle*)handle)->pointer_mode = mode, SUCCESS; }
API int cublasGetPointerMode_v2(void* handle, int* mode) { return *mode = ((Handle*)handle)->pointer_mode, SUCCESS; }

API int cublasGemmStridedBatchedEx(void* handle, int turn_a, int turn_b, int m, int n, int k, const void* alpha, const void* a, int type_a,
                                   int lda, long long step_a, const void* b, int type_b, int ldb, long long step_b, const void* beta,
                                   void* c, int type_c, int ldc, long long step_c, int count, int arithmetic, int) {
    auto* with = (Handle*)handle;
    if (with->pointer_mode) return NOT_SUPPORTED;                    // alpha and beta on the GPU
    if (arithmetic == IN_PEDANTIC_FLOAT) arithmetic = IN_FLOAT;
    Product product{m, n, k, count, arithmetic, scale(alpha, arithmetic), scale(beta, arithmetic),
                    {(const char*)a, type_a, turn_a != 0, lda, step_a},
                    {(const char*)b, type_b, turn_b != 0, ldb, step_b},
                    {(const char*)c, type_c, false, ldc, step_c},
                    {}};
    return product.launch(with->stream, with->workspace);
}
API int cublasGemmEx(void* handle, int turn_a, int turn_b, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
                     const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int arithmetic, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, turn_a, turn_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c,
                                      ldc, 0, 1, arithmetic, algorithm);
}
#define GEMM(LETTER, T, TYPE, ARITHMETIC)                                                                                          \
    API int cublas##LETTER##gemm_v2(void* handle, int turn_a, int turn_b, int m, int n, int k, const T* alpha, const T* a, int lda,    \
                                    const T* b, int ldb, const T* beta, T* c, int ldc) {                                           \
        return cublasGemmEx(handle, turn_a, turn_b, m, n, k, alpha, a, TYPE, lda, b, TYPE, ldb, beta, c, TYPE, ldc, ARITHMETIC, 0);  \
    }                                                                                                                              \
    API int cublas##LETTER##gemmStridedBatched(void* handle, int turn_a, int turn_b, int m, int n, int k, const T* alpha, const T* a, \
                                               int lda, long long step_a, const T* b, int ldb, long long step_b, const T* beta,    \
                                               T* c, int ldc, long long step_c, int count) {                                       \
        return cublasGemmStridedBatchedEx(handle, turn_a, turn_b, m, n, k, alpha, a, TYPE, lda, step_a, b, TYPE, ldb, step_b, beta, \
                                          c, TYPE, ldc, step_c, count, ARITHMETIC, 0);                                             \
    }
GEMM(S, float, FLOAT, IN_FLOAT)
GEMM(D, double, DOUBLE, IN_DOUBLE)

// ---- cuBLASLt -----------------------------------------------------------------------------------------------------

namespace {

// Attributes of all kinds of descriptors, by number; integers and addresses.
struct Descriptor {
    int type = 0;                                                    // of a layout; of a product its arithmetic
    uint64_t rows = 0, cols = 0;
    int64_t column = 0;
    std::map<int, int64_t> attributes;

    int64_t get(int attribute, int64_t otherwise) const {
        auto found = attributes.find(attribute);
        return found == attributes.end() ? otherwise : found->second;
    }
    Matrix matrix(const void* data, bool is_turned) const { return {(const char*)data, type, is_turned, column, get(6, 0)}; }
    int64_t count() const { return get(5, 1); }
};
enum { TURN_A = 3, TURN_B = 4, EPILOGUE = 7, BIAS = 8, BIAS_STEP = 10, EPILOGUE_NONE = 1, EPILOGUE_BIAS = 4 };

int set(void* descriptor, int attribute, const void* value, size_t num_bytes) {
    int64_t number = 0;
    if (num_bytes != 4 && num_bytes != 8) return INVALID_VALUE;
    memcpy(&number, value, num_bytes);
    ((Descriptor*)descriptor)->attributes[attribute] = number;
    return SUCCESS;
}
int destroy(void* descriptor) { return delete (Descriptor*)descriptor, SUCCESS; }

struct Found {                                                       // cublasLtMatmulHeuristicResult_t
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};
constexpr uint64_t ONLY_ALGORITHM = 42;

}  // namespace

API int cublasLtMatmulDescCreate(void** made, int arithmetic, int) { return *made = new Descriptor{arithmetic}, SUCCESS; }
API int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t cols, int64_t column) {
    return *made = new Descriptor{type, rows, cols, column}, SUCCESS;
}
API int cublasLtMatmulPreferenceCreate(void** made) { return *made = new Descriptor, SUCCESS; }
API int cublasLtMatmulDescSetAttribute(void* d, int which, const void* value, size_t n) { return set(d, which, value, n); }
API int cublasLtMatrixLayoutSetAttribute(void* d, int which, const void* value, size_t n) { return set(d, which, value, n); }
API int cublasLtMatmulPreferenceSetAttribute(void* d, int which, const void* value, size_t n) { return set(d, which, value, n); }
API int cublasLtMatmulDescDestroy(void* d) { return destroy(d); }
API int cublasLtMatrixLayoutDestroy(void* d) { return destroy(d); }
API int cublasLtMatmulPreferenceDestroy(void* d) { return destroy(d); }

API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted, void* results, int* count) {
    *count = 0;
    if (wanted < 1 || getenv("SOFTWARE_CUDA_WITHOUT_LT")) return wanted < 1 ? INVALID_VALUE : NOT_SUPPORTED;
    Found found{{ONLY_ALGORITHM}, 1 << 20, 0, 1, {}};
    memcpy(results, &found, sizeof found);
    *count = 1;
    return SUCCESS;
}

API int cublasLtMatmul(void*, void* operation, const void* alpha, const void* a, void* layout_a, const void* b, void* layout_b,
                       const void* beta, const void* c, void*, void* d, void* layout_d, const void* algorithm, void* workspace, size_t,
                       void* stream) {
    const Descriptor &of = *(Descriptor*)operation, &A = *(Descriptor*)layout_a, &B = *(Descriptor*)layout_b, &D = *(Descriptor*)layout_d;
    bool turn_a = of.get(TURN_A, 0), turn_b = of.get(TURN_B, 0);
    int64_t m = D.rows, n = D.cols, k = turn_a ? A.rows : A.cols, epilogue = of.get(EPILOGUE, EPILOGUE_NONE);
    bool fits = (int64_t)(turn_a ? A.cols : A.rows) == m && (int64_t)(turn_b ? B.cols : B.rows) == k &&
                (int64_t)(turn_b ? B.rows : B.cols) == n && A.count() == D.count() && B.count() == D.count();
    bool is_aligned = (uintptr_t)workspace % 16 == 0;
    if (!fits || !is_aligned || *(const uint64_t*)algorithm != ONLY_ALGORITHM || (c != d && *(const float*)beta != 0)) return INVALID_VALUE;
    if (epilogue != EPILOGUE_NONE && epilogue != EPILOGUE_BIAS) return NOT_SUPPORTED;
    Product product{m, n, k, (int)D.count(), of.type, *(const float*)alpha, *(const float*)beta,
                    A.matrix(a, turn_a), B.matrix(b, turn_b), D.matrix(d, false), {}};
    if (epilogue == EPILOGUE_BIAS) product.bias = {(const char*)of.get(BIAS, 0), D.type, false, 0, of.get(BIAS_STEP, 0)};
    return product.launch(stream, workspace);
}
