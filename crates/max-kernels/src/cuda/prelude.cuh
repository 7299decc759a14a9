// What generated functions are made of: the types of elements in memory, the arithmetic of lanes, and reductions.
// No headers are included: whatever is not of the language itself is a builtin of the compiler. SMALL_FLOATS(F) expands
// to F(name, format) for all floats of at most eight bits.

typedef unsigned long long u64;
typedef long long i64;

// Elements in memory that registers hold in another type. Native types are their own.
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
#define SMALL_FLOAT(NAME, ...) struct NAME { unsigned char bits; };
SMALL_FLOATS(SMALL_FLOAT)
#undef SMALL_FLOAT
struct boolean { unsigned char bits; };

namespace lane {

// ---- Integers. They wrap: what is signed is computed as unsigned, in a type that is not promoted.

template <class T> struct Wide { typedef unsigned type; };
template <> struct Wide<i64> { typedef u64 type; };
template <> struct Wide<u64> { typedef u64 type; };

template <class T> T add(T a, T b) { typedef typename Wide<T>::type W; return (T)((W)a + (W)b); }
template <class T> T sub(T a, T b) { typedef typename Wide<T>::type W; return (T)((W)a - (W)b); }
template <class T> T mul(T a, T b) { typedef typename Wide<T>::type W; return (T)((W)a * (W)b); }
template <class T> T neg(T a) { return sub<T>((T)0, a); }
template <class T> T abs(T a) { return a < (T)0 ? neg<T>(a) : a; }
template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T min(T a, T b) { return a < b ? a : b; }
template <class T> T floor(T a) { return a; }
template <class T> T ceil(T a) { return a; }
template <class T> T round(T a) { return a; }
template <class T> T trunc(T a) { return a; }
template <class T> bool is_inf(T) { return false; }

// The quotient rounded down; zero where the divisor is zero.
template <class T> T floor_div(T a, T b) {
    if (b == (T)0) return (T)0;
    if ((T)-1 < (T)0 && b == (T)-1) return neg<T>(a);
    T quotient = (T)(a / b);
    bool below = (T)(a % b) != (T)0 && (a < (T)0) != (b < (T)0);
    return below ? (T)(quotient - (T)1) : quotient;
}

template <class T> T modulo(T a, T b) {
    return b == (T)0 ? (T)0 : sub<T>(a, mul<T>(floor_div<T>(a, b), b));
}

template <class T> __noinline__ T pow(T a, T b) {
    if (b < (T)0) {
        if (a == (T)1) return (T)1;
        if (a == (T)-1) return (b & (T)1) != (T)0 ? a : (T)1;
        return (T)0;
    }
    T product = (T)1;
    for (u64 left = (u64)b; left > 0; left >>= 1) {
        if (left & 1) product = mul<T>(product, a);
        a = mul<T>(a, a);
    }
    return product;
}

// ---- Bool, a one-bit integer that saturates.

bool add(bool a, bool b) { return a || b; }
bool sub(bool a, bool b) { return a != b; }
bool mul(bool a, bool b) { return a && b; }
bool floor_div(bool a, bool b) { return a && b; }
bool modulo(bool, bool) { return false; }
bool pow(bool a, bool b) { return a || !b; }
bool max(bool a, bool b) { return a || b; }
bool min(bool a, bool b) { return a && b; }
bool neg(bool a) { return a; }
bool abs(bool a) { return a; }

// ---- Floats. What takes many instructions is not copied to each place where it is used.

#define FLOATS(T, F, REAL)                                                  \
    T add(T a, T b) { return a + b; }                                       \
    T sub(T a, T b) { return a - b; }                                       \
    T mul(T a, T b) { return a * b; }                                       \
    T div(T a, T b) { return a / b; }                                       \
    T neg(T a) { return -a; }                                               \
    T abs(T a) { return ::fabs##F(a); }                                     \
    T floor(T a) { return ::floor##F(a); }                                  \
    T ceil(T a) { return ::ceil##F(a); }                                    \
    T round(T a) { return ::rint##F(a); }                                   \
    T trunc(T a) { return ::trunc##F(a); }                                  \
    T sqrt(T a) { return ::sqrt##F(a); }                                    \
    REAL T exp(T a) { return ::exp##F(a); }                                 \
    REAL T log(T a) { return ::log##F(a); }                                 \
    REAL T tanh(T a) { return ::tanh##F(a); }                               \
    REAL T erf(T a) { return ::erf##F(a); }                                 \
    __noinline__ T pow(T a, T b) { return ::pow##F(a, b); }                 \
    __noinline__ T log1p(T a) { return ::log1p##F(a); }                     \
    __noinline__ T sin(T a) { return ::sin##F(a); }                         \
    __noinline__ T cos(T a) { return ::cos##F(a); }                         \
    __noinline__ T acos(T a) { return ::acos##F(a); }                       \
    __noinline__ T atanh(T a) { return ::atanh##F(a); }                     \
    bool is_inf(T a) { return ::fabs##F(a) == (T)__int_as_float(0x7f800000); } \
    __noinline__ T floor_div(T a, T b) {                                    \
        if (b == (T)0) return a / b;                                        \
        T rest = ::fmod##F(a, b);                                           \
        T quotient = (a - rest) / b;                                        \
        if (rest != (T)0 && (rest < (T)0) != (b < (T)0)) quotient -= (T)1;  \
        if (quotient == (T)0) return ::copysign##F((T)0, a / b);            \
        T whole = ::floor##F(quotient);                                     \
        return quotient - whole > (T)0.5 ? whole + (T)1 : whole;            \
    }                                                                       \
    __noinline__ T modulo(T a, T b) {                                       \
        T rest = ::fmod##F(a, b);                                           \
        if (rest == (T)0) return ::copysign##F((T)0, b);                    \
        return (rest < (T)0) != (b < (T)0) ? rest + b : rest;               \
    }

FLOATS(float, f, )
FLOATS(double, , __noinline__)
#undef FLOATS

// NaN wins.
double max(double a, double b) { return a > b || a != a ? a : b; }
double min(double a, double b) { return a < b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
float max(float a, float b) { float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
float min(float a, float b) { float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
#else
float max(float a, float b) { return a > b || a != a ? a : b; }
float min(float a, float b) { return a < b || a != a ? a : b; }
#endif

// ---- Narrow floats: widened when they are loaded, rounded to nearest even when they are stored.

#define SMALL_FLOAT(NAME, ...)                                                                  \
    float widen(NAME x) { return Small<__VA_ARGS__>::widen(x.bits); }                           \
    void put(NAME& memory, float x) { memory.bits = Small<__VA_ARGS__>::narrow(x); }
SMALL_FLOATS(SMALL_FLOAT)
#undef SMALL_FLOAT

float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
void put(bf16& memory, float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(memory.bits) : "f"(x));
#else
    unsigned bits = __float_as_uint(x);
    unsigned rounded = bits + 0x7fffu + ((bits >> 16) & 1);
    memory.bits = (unsigned short)((x != x ? bits | 0x400000u : rounded) >> 16);
#endif
}

float widen(f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}
void put(f16& memory, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(memory.bits) : "f"(x)); }

bool widen(boolean x) { return x.bits != 0; }
void put(boolean& memory, bool x) { memory.bits = x; }

template <class T> T widen(T x) { return x; }
template <class T> void put(T& memory, T x) { memory = x; }

// ---- Casts.

// The float next to a number toward zero, with its last bit set, unless a float is equal: a second rounding then
// gives what rounding once would.
float to_odd(double value) {
    float nearest = (float)value;
    double back = (double)nearest;
    unsigned beyond = ::fabs(back) > ::fabs(value), inexact = back != value;
    return __uint_as_float((__float_as_uint(nearest) - beyond) | inexact);
}

// Truncates and saturates; NaN is zero.
template <class T, class F> T whole(F x, F bottom, F top, T least, T most) {
    return x != x ? (T)0 : x >= top ? most : x < bottom ? least : (T)x;
}

template <class To> struct Cast {
    template <class From> static To of(From x) { return (To)x; }
};
#define WHOLE(T, BOTTOM, TOP, LEAST, MOST)                                                      \
    template <> struct Cast<T> {                                                                \
        template <class From> static T of(From x) { return (T)x; }                              \
        static T of(float x) { return whole<T, float>(x, BOTTOM, TOP, (T)(LEAST), (T)(MOST)); } \
        static T of(double x) { return whole<T, double>(x, BOTTOM, TOP, (T)(LEAST), (T)(MOST)); } \
    };
WHOLE(signed char, -128.0f, 128.0f, -128, 127)
WHOLE(short, -32768.0f, 32768.0f, -32768, 32767)
WHOLE(int, -2147483648.0f, 2147483648.0f, -2147483647 - 1, 2147483647)
WHOLE(i64, -9223372036854775808.0f, 9223372036854775808.0f, 0x8000000000000000ull, 0x7fffffffffffffffull)
WHOLE(unsigned char, 0.0f, 256.0f, 0, 255)
WHOLE(unsigned short, 0.0f, 65536.0f, 0, 65535)
WHOLE(unsigned, 0.0f, 4294967296.0f, 0, 4294967295u)
WHOLE(u64, 0.0f, 18446744073709551616.0f, 0, 0xffffffffffffffffull)
#undef WHOLE
template <> struct Cast<bool> {
    template <class From> static bool of(From x) { return x != (From)0; }
};

// Rounds to a narrow float and widens again.
template <class Narrow> struct Rounded {
    static float of(float x) { Narrow memory; put(memory, x); return widen(memory); }
    template <class From> static float of(From x) { return of(to_odd((double)x)); }
};

// ---- Random numbers: the words of a block of Philox 4x32 with ten rounds.

template <class T> struct Units { T u, v; };

struct Words { unsigned a, b, c, d; };

Words philox(u64 seed, i64 position) {
    unsigned low = (unsigned)seed, high = (unsigned)(seed >> 32);
    Words x = { (unsigned)position, (unsigned)((u64)position >> 32), 0, 0 };
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned first = __umulhi(0xd2511f53u, x.a), second = __umulhi(0xcd9e8d57u, x.c);
        x = { second ^ x.b ^ low, 0xcd9e8d57u * x.c, first ^ x.d ^ high, 0xd2511f53u * x.a };
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
    return x;
}

template <class T> Units<T> units(u64 seed, i64 position);
template <> Units<float> units<float>(u64 seed, i64 position) {
    Words x = philox(seed, position);
    return { (float)(int)(x.a >> 8) * (1.0f / 16777216.0f), (float)(int)(x.b >> 8) * (1.0f / 16777216.0f) };
}
template <> Units<double> units<double>(u64 seed, i64 position) {
    Words x = philox(seed, position);
    i64 first = (i64)(((u64)x.a << 32 | x.b) >> 11), second = (i64)(((u64)x.c << 32 | x.d) >> 11);
    return { (double)first * (1.0 / 9007199254740992.0), (double)second * (1.0 / 9007199254740992.0) };
}

// ---- Memory. Vectors are read and written sixteen bytes at a time, or whole where they are smaller.

template <int BYTES> struct Piece { typedef uint4 type; };
template <> struct Piece<8> { typedef uint2 type; };
template <> struct Piece<4> { typedef unsigned type; };
template <> struct Piece<2> { typedef unsigned short type; };
template <> struct Piece<1> { typedef unsigned char type; };

// Neighbours as they lie in memory, of which the first `count` exist.
template <int V, class S> struct Pack {
    typedef typename Piece<(sizeof(S) * V > 16 ? 16 : sizeof(S) * V)>::type P;
    static const int pieces = sizeof(S) * V / sizeof(P);
    P raw[pieces];

    S get(int v) const { return ((const S*)raw)[v]; }
    void fetch(const S* from, i64 count) {
        if (count >= V) {
#pragma unroll
            for (int p = 0; p < pieces; p++) raw[p] = ((const P*)from)[p];
        } else {
#pragma unroll
            for (int v = 0; v < V; v++) if (v < count) ((S*)raw)[v] = from[v];
        }
    }
};

// Elements at a distance from each other, as they lie in memory.
template <int V, class S> void fetch_apart(S (&to)[V], const S* from, i64 stride, i64 count) {
#pragma unroll
    for (int v = 0; v < V; v++) if (v < count) to[v] = from[v * stride];
}

// A vector of neighbours.
template <int V, class S, class R> void load(R (&to)[V], const S* from) {
    Pack<V, S> pack;
    pack.fetch(from, V);
#pragma unroll
    for (int v = 0; v < V; v++) to[v] = widen(pack.get(v));
}

// Rounds a vector. Two at a time take no longer than one.
template <int V, class S, class R> void put_all(S* to, const R (&from)[V]) {
#pragma unroll
    for (int v = 0; v < V; v++) put(to[v], from[v]);
}
#if __CUDA_ARCH__ >= 800
#define PAIRS(NAME, INSTRUCTION)                                                                \
    template <int V> void put_all(NAME* to, const float (&from)[V]) {                           \
        _Pragma("unroll") for (int v = 0; v + 1 < V; v += 2)                                    \
            asm(INSTRUCTION " %0, %1, %2;" : "=r"(((unsigned*)to)[v / 2]) : "f"(from[v + 1]), "f"(from[v])); \
        if (V % 2) put(to[V - 1], from[V - 1]);                                                 \
    }
PAIRS(bf16, "cvt.rn.bf16x2.f32")
PAIRS(f16, "cvt.rn.f16x2.f32")
#undef PAIRS
#endif

template <int V, class S, class R> void store(S* to, const R (&from)[V], i64 count) {
    typedef typename Piece<(sizeof(S) * V > 16 ? 16 : sizeof(S) * V)>::type P;
    const int pieces = sizeof(S) * V / sizeof(P);
    if (count >= V) {
        P raw[pieces];
        put_all((S*)raw, from);
#pragma unroll
        for (int p = 0; p < pieces; p++) ((P*)to)[p] = raw[p];
    } else {
#pragma unroll
        for (int v = 0; v < V; v++) if (v < count) put(to[v], from[v]);
    }
}

// A vector of neighbours as it is, to memory that is not aligned for vectors.
template <int V, class S> void copy(S* to, const S* from) {
    typedef typename Piece<(sizeof(S) * V > 16 ? 16 : sizeof(S) * V)>::type P;
    const int pieces = sizeof(S) * V / sizeof(P);
    P raw[pieces];
#pragma unroll
    for (int p = 0; p < pieces; p++) raw[p] = ((const P*)from)[p];
#pragma unroll
    for (int v = 0; v < V; v++) to[v] = ((const S*)raw)[v];
}

// The same element everywhere.
template <int V, class S, class R> void load_same(R (&to)[V], const S* from) {
    R one = widen(*from);
#pragma unroll
    for (int v = 0; v < V; v++) to[v] = one;
}

// Elements at a distance from each other.
template <int V, class S, class R> void load_apart(R (&to)[V], const S* from, i64 stride) {
#pragma unroll
    for (int v = 0; v < V; v++) to[v] = widen(from[v * stride]);
}

template <int V, class S, class R> void store_apart(S* to, const R (&from)[V], i64 stride, i64 count) {
#pragma unroll
    for (int v = 0; v < V; v++) if (v < count) put(to[v * stride], from[v]);
}

// ---- Positions. A divisor of numbers below 2^31 is a factor and how far to shift; else it is the number itself.

unsigned quotient(unsigned number, u64 divisor) {
    return (unsigned)(((u64)number * (unsigned)divisor) >> (unsigned)(divisor >> 32));
}
u64 quotient(u64 number, u64 divisor) { return number / divisor; }

// ---- Reductions.

// The best element so far and its index; there is none where the index is below zero.
template <class T> struct Best { T value; i64 index; };

struct Sum { template <class T> static T of(T a, T b) { return add(a, b); } };
struct Prod { template <class T> static T of(T a, T b) { return mul(a, b); } };
struct Max { template <class T> static T of(T a, T b) { return max(a, b); } };
struct Min { template <class T> static T of(T a, T b) { return min(a, b); } };

// A sum of many terms: what rounding adds to it with one term is taken from the next. A sum that is not finite stays so.
template <class T> struct Total {
    T sum, error;

    void add(T term) {
        T rest = term - error, next = sum + rest, excess = (next - sum) - rest;
        error = excess - excess == (T)0 ? excess : (T)0;
        sum = next;
    }
};

// The first of equal elements wins, and NaN beats everything.
template <bool LEAST> struct First {
    template <class T> static Best<T> of(Best<T> old, Best<T> next) {
        if (next.index < 0) return old;
        if (old.index < 0) return next;
        bool earlier = next.index < old.index, is_nan = next.value != next.value;
        bool beats = LEAST ? next.value < old.value : old.value < next.value;
        bool wins = old.value != old.value ? is_nan && earlier
                                           : beats || is_nan || (next.value == old.value && earlier);
        return wins ? next : old;
    }
};
typedef First<false> ArgMax;
typedef First<true> ArgMin;

template <class T> T shuffle(T x, int mask) { return (T)__shfl_xor_sync(0xffffffffu, (int)x, mask); }
unsigned shuffle(unsigned x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
i64 shuffle(i64 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
u64 shuffle(u64 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
float shuffle(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
double shuffle(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
template <class T> Best<T> shuffle(Best<T> x, int mask) {
    Best<T> other = { shuffle(x.value, mask), shuffle(x.index, mask) };
    return other;
}

// Combines what the threads of a group have, which are neighbours: a part of a warp, or the block. All get the result.
template <class Op, int GROUP, class T> T reduce(T x) {
#pragma unroll
    for (int mask = 1; mask < (GROUP < 32 ? GROUP : 32); mask *= 2) x = Op::of(x, shuffle(x, mask));
    if (GROUP > 32) {
        __shared__ T parts[GROUP > 32 ? GROUP / 32 : 1];
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
        __syncthreads();
        x = parts[0];
#pragma unroll
        for (int part = 1; part < GROUP / 32; part++) x = Op::of(x, parts[part]);
    }
    return x;
}

// Combines what the threads of a column of a block have, in order, vector by vector. All get the result. The room has
// space for the vectors of all threads.
template <class Op, int ACROSS, int DOWN, int V, class T> void reduce_down(T (&x)[V], void* room) {
    if (DOWN == 1) return;
    const int columns = ACROSS * V;
    T* parts = (T*)room;
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; v++) parts[threadIdx.y * columns + threadIdx.x * V + v] = x[v];
    __syncthreads();
    for (int column = threadIdx.y * ACROSS + threadIdx.x; column < columns; column += ACROSS * DOWN) {
        T whole = parts[column];
#pragma unroll
        for (int part = 1; part < DOWN; part++) whole = Op::of(whole, parts[part * columns + column]);
        parts[column] = whole;
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; v++) x[v] = parts[threadIdx.x * V + v];
}

}  // namespace lane
