// Products of up to ROWS rows with several quantized matrices: streams of bytes that are read once.
//
// The columns of all matrices are in teams of LINES. Each warp takes every so many teams, whatever the others do: it copies the
// segments of their rows of weights to a ring of its own in shared memory, STAGES at a time, and multiplies them there, without
// waiting for another warp. LANES lanes multiply WIDE lines; each takes spans of SPAN slices, which share words of codes, and
// multiplies bytes exactly, four at a time. Every block quantizes the rows for itself while the first segments are on their way.
// It may start before the launches before it are done, and read weights that none of them writes.
//
// The sums of a lane are in the order of its spans, and those of lanes are added in pairs: an order that depends on the depth
// alone.

#define LINES 4
#define LANES (8 * WIDE)
#define SPANS (SEGMENT / SLICE / SPAN)
#define SEGMENT_BYTES (SEGMENT / ELEMENTS * BYTES)
#define HALVES (SLICE / GROUP)
static_assert(SPANS % LANES == 0, "a segment is a whole number of spans for each lane");

// A slice of a row: its bytes, its scale, and the scale times the sums of the bytes of the first half, the second half and all
// of it. Vectors at the same place in consecutive spans are in different banks.
#define RECORD 48
#define SPAN_BYTES (SPAN * RECORD + (SPAN > 1 ? 16 : 0))

struct Matrix {
    const unsigned char *codes, *scales;
    long long n, code_row, scale_row, group_size, shift;

    __device__ __forceinline__ Weights weights() const {
        return {codes, scales, code_row, scale_row, (int)group_size, (int)shift};
    }
    // The line of a team, or the last column.
    __device__ __forceinline__ long long column(int team, int line) const {
        const int column = team * LINES + line, last = (int)n - 1;
        return column < last ? column : last;
    }
};

struct Matrices {
    Matrix all[COUNT];
};

// Where a warp is: in a matrix or behind the last one, and in a team of it.
struct Place {
    int number, team;

    __device__ __forceinline__ void advance(const Matrices &matrices, int teams) {
        team += teams;
        while (number < COUNT) {
            const int own = (int)((matrices.all[number].n + LINES - 1) / LINES);
            if (team < own) break;
            team -= own;
            number++;
        }
    }
};

__device__ __forceinline__ int dot(unsigned weights, unsigned x, int sum) {
    int next;
#if IS_SIGNED
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(next) : "r"(weights), "r"(x), "r"(sum));
#else
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(next) : "r"(weights), "r"(x), "r"(sum));
#endif
    return next;
}

// Lets the next launch start, if it is a function that waits itself.
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the launches before this one are done. Every function that allows others to start early calls this, so whatever
// comes later also waits for what this one waited for.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The ring of a warp. Copies are by one lane per line and end at a barrier of the stage, or by all lanes of a line.
struct Ring {
    unsigned char *stages;
    unsigned long long *barriers;
    int slot;
    unsigned parity;

    __device__ __forceinline__ static unsigned shared(const void *place) {
        return (unsigned)__cvta_generic_to_shared(place);
    }
    __device__ __forceinline__ void start(int lane) {
        slot = 0;
        parity = 0;
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
#pragma unroll
            for (int stage = 0; stage < STAGES; stage++) {
                asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barriers + stage)), "r"(LINES) : "memory");
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
#endif
    }
    // The vectors with `count` bytes from an address on.
    __device__ __forceinline__ static unsigned vectors(const unsigned char *from, int count) {
        return (unsigned)(skew(from) + count + 15) & ~15u;
    }
    // Says that so many bytes of a line are copied to the stage.
    __device__ __forceinline__ void expect(int member, unsigned bytes) const {
#if __CUDA_ARCH__ >= 900
        if (member == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barriers + slot)), "r"(bytes)
                         : "memory");
        }
#endif
    }
    __device__ __forceinline__ void copy(int member, unsigned char *to, const unsigned char *from, int count) const {
        const unsigned char *const whole = from - skew(from);
        const unsigned bytes = vectors(from, count);
#if __CUDA_ARCH__ >= 900
        if (member == 0) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared(to)),
                "l"(whole), "r"(bytes), "r"(shared(barriers + slot))
                : "memory");
        }
#else
#pragma unroll 1
        for (unsigned at = member * 16; at < bytes; at += 32 / LINES * 16) copy_vector(to + at, whole + at);
#endif
    }
    // Ends the copies to the stage, which is done for each, even if there is nothing left to copy.
    __device__ __forceinline__ void next() {
#if __CUDA_ARCH__ < 900
        commit();
#endif
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
    // Waits for the copies to the stage.
    __device__ __forceinline__ void await() const {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
                shared(barriers + slot)),
            "r"(parity)
            : "memory");
#else
        wait<STAGES - 1>();
        __syncwarp();
#endif
    }
};

// Adds the products of a span of WIDE lines. The lines are in shared memory from `lines` on, and the scales of a segment that
// starts at element `first` from `scales` on, if they are apart.
template <int ALIGNMENT>
__device__ __forceinline__ void add_span(
    const unsigned char *const (&lines)[WIDE], const unsigned char *const (&scales)[WIDE], const Weights &weights, int first,
    int span, const unsigned char *records, int row_bytes, float (&totals)[WIDE][ROWS]) {
    const unsigned block = span * (SPAN * SLICE) / ELEMENTS * BYTES, corner = span * (SPAN * SLICE) % ELEMENTS;
#pragma unroll
    for (int s = 0; s < SPAN; s++) {
        const unsigned base = corner + s * SLICE;
        const unsigned char *const record = records + span * SPAN_BYTES + s * RECORD;
        unsigned words[WIDE][8];
        float scale[WIDE][HALVES];
#if HAS_MIN
        float least[WIDE][HALVES];
#endif
#pragma unroll
        for (int w = 0; w < WIDE; w++) {
            const unsigned char *const start = lines[w] + block;
#pragma unroll
            for (int t = 0; t < 4; t++) {
                pair<ALIGNMENT>(Row<ALIGNMENT>(start, t), 0, base, t, words[w][2 * t], words[w][2 * t + 1]);
            }
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
#if IS_APART
                const int number = weights.scale_number(first + (span * SPAN + s) * SLICE) - weights.scale_number(first);
                scale[w][h] = scale_at<1>(scales[w] + number * SCALE_BYTES, 0);
#else
                scale[w][h] = scale_at<ALIGNMENT>(start, base / GROUP + h);
#if HAS_MIN
                least[w][h] = min_at<ALIGNMENT>(start, base / GROUP + h);
#endif
#endif
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const unsigned char *const own = record + r * row_bytes;
            const uint4 low = *(const uint4 *)own, high = *(const uint4 *)(own + 16);
            const unsigned x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            const float *const known = (const float *)(own + 32);
            const float unit = known[0];
#pragma unroll
            for (int w = 0; w < WIDE; w++) {
                int products[HALVES] = {};
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    products[0] = dot(words[w][2 * t], x[2 * t], products[0]);
                    products[HALVES - 1] = dot(words[w][2 * t + 1], x[2 * t + 1], products[HALVES - 1]);
                }
#pragma unroll
                for (int h = 0; h < HALVES; h++) {
                    totals[w][r] = fmaf(scale[w][h] * unit, (float)products[h], totals[w][r]);
#if HAS_MIN
                    totals[w][r] = fmaf(-least[w][h], known[HALVES == 1 ? 3 : 1 + h], totals[w][r]);
#endif
                }
            }
        }
    }
}

// Quantizes the rows, of which `m` exist.
__device__ __forceinline__ void quantize_rows(
    unsigned char *records, int row_bytes, const IN *x, int m, int groups, long long x_row, long long x_col) {
    constexpr int AHEAD = ROWS > 1 ? 2 : 1, TEAMS = WARPS * 8;
    const int member = threadIdx.x % 4, all = groups * ROWS;
    // Lanes without a group of their own repeat the last one.
#pragma unroll 1
    for (int start = threadIdx.x / 32 * 8; start < all; start += TEAMS * AHEAD) {
        float values[AHEAD][8];
        unsigned char *records_of[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int own = start + i * TEAMS + threadIdx.x % 32 / 4, at = own < all ? own : all - 1;
            const int row = ROWS == 1 ? 0 : at / groups, group = at - row * groups;
            read_elements(values[i], x + (row < m ? row : m - 1) * x_row + (long long)group * SLICE * x_col, x_col, member);
            records_of[i] = records + row * row_bytes + group / SPAN * SPAN_BYTES + group % SPAN * RECORD;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const Unit unit = quantize(values[i], member, INTERLEAVED, records_of[i]);
            if (member == 0) {
                const float scale = unit.scale;
                *(float4 *)(records_of[i] + 32) = {
                    scale, scale * (float)unit.half, scale * (float)(unit.all - unit.half), scale * (float)unit.all};
            }
        }
    }
}

template <int NUMBER> struct Constant {
    static const int value = NUMBER;
};

// What happens to an element of a product is a function, `finish`, of the matrix, the sum, the row and the column.
template <class Finish>
__device__ __forceinline__ void multiply(
    const IN *x, long long m, long long k, long long x_row, long long x_col, const Matrices &matrices, Finish finish) {
    extern __shared__ uint4 arena[];
    unsigned char *const bytes = (unsigned char *)arena, *const records = bytes + RECORDS_AT;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The line that this lane copies, and the first of those that it multiplies.
    const int copied = lane / (32 / LINES), member = lane % (32 / LINES), line = lane / LANES * WIDE;
    Ring ring = {bytes + RING_AT + warp * (STAGES * STAGE), (unsigned long long *)bytes + warp * STAGES};
    allow_next();
    ring.start(lane);
    const int groups = (int)(k / SLICE), segments = (groups + SEGMENT / SLICE - 1) / (SEGMENT / SLICE);
    const auto slices_of = [&](int segment) {
        const int left = groups - segment * (SEGMENT / SLICE);
        return left < SEGMENT / SLICE ? left : SEGMENT / SLICE;
    };
    const int teams = (int)gridDim.x * WARPS;
    Place here = {0, 0};
    here.advance(matrices, (int)blockIdx.x + (int)gridDim.x * warp);
    Place there = here;
    int next_segment = 0;
    const unsigned char *next_codes = nullptr;
    const auto seek = [&] {
        if (there.number < COUNT) {
            const Matrix &matrix = matrices.all[there.number];
            next_codes = matrix.codes + matrix.column(there.team, copied) * matrix.code_row;
        }
    };
    seek();
    // Copies the next segment of a team to the stage.
    const auto copy_next = [&] {
        if (there.number < COUNT) {
            const int slices = slices_of(next_segment), count = slices * SLICE / ELEMENTS * BYTES;
            unsigned char *const stage = ring.stages + ring.slot * STAGE;
#if IS_APART
            const Matrix &matrix = matrices.all[there.number];
            const Weights weights = matrix.weights();
            const int first = weights.scale_number(next_segment * SEGMENT);
            const int scale_count =
                (weights.scale_number(next_segment * SEGMENT + slices * SLICE - 1) + 1 - first) * SCALE_BYTES;
            const unsigned char *const scales =
                matrix.scales + matrix.column(there.team, copied) * matrix.scale_row + first * SCALE_BYTES;
            ring.expect(member, Ring::vectors(next_codes, count) + Ring::vectors(scales, scale_count));
            ring.copy(member, stage + LINES * LINE_BYTES + copied * SCALE_LINE_BYTES, scales, scale_count);
#else
            ring.expect(member, Ring::vectors(next_codes, count));
#endif
            ring.copy(member, stage + copied * LINE_BYTES, next_codes, count);
            next_codes += SEGMENT_BYTES;
            if (++next_segment == segments) {
                next_segment = 0;
                there.advance(matrices, teams);
                seek();
            }
        }
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES; stage++) {
        copy_next();
        ring.next();
    }
    // All stages are on their way: the first of them is the one to wait for.
    ring.parity = 0;
    // Until here nothing was read but weights, and nothing was written.
    wait_for_previous();
    const int row_bytes = (groups + SPAN - 1) / SPAN * SPAN_BYTES;
    quantize_rows(records, row_bytes, x, (int)m, groups, x_row, x_col);
    __syncthreads();
    while (here.number < COUNT) {
        const Matrix &matrix = matrices.all[here.number];
        const Weights weights = matrix.weights();
        const bool aligned = ((unsigned long long)matrix.codes | (unsigned long long)matrix.code_row) % BLOCK_ALIGNMENT == 0;
        float totals[WIDE][ROWS] = {};
#pragma unroll 1
        for (int segment = 0; segment < segments; segment++) {
            const unsigned char *const stage = ring.stages + ring.slot * STAGE;
            const unsigned char *lines[WIDE], *scales[WIDE] = {};
#pragma unroll
            for (int w = 0; w < WIDE; w++) {
                const long long column = matrix.column(here.team, line + w);
                const unsigned char *const codes = matrix.codes + column * matrix.code_row + (long long)segment * SEGMENT_BYTES;
                lines[w] = stage + (line + w) * LINE_BYTES + skew(codes);
#if IS_APART
                const unsigned char *const from =
                    matrix.scales + column * matrix.scale_row + weights.scale_number(segment * SEGMENT) * SCALE_BYTES;
                scales[w] = stage + LINES * LINE_BYTES + (line + w) * SCALE_LINE_BYTES + skew(from);
#endif
            }
            const int spans = slices_of(segment) / SPAN;
            const unsigned char *const own = records + segment * (SPANS * SPAN_BYTES);
            const auto add = [&](auto alignment, int span) {
                add_span<decltype(alignment)::value>(lines, scales, weights, segment * SEGMENT, span, own, row_bytes, totals);
            };
            const auto add_all = [&](auto alignment) {
                constexpr int AT_ONCE = SPAN * ROWS > 1 ? 1 : 2;
                if (spans == SPANS) {
#pragma unroll AT_ONCE
                    for (int i = 0; i < SPANS / LANES; i++) add(alignment, i * LANES + lane % LANES);
                } else {
#pragma unroll 1
                    for (int span = lane % LANES; span < spans; span += LANES) add(alignment, span);
                }
            };
            ring.await();
            if (BLOCK_ALIGNMENT > 1 && aligned) add_all(Constant<BLOCK_ALIGNMENT>());
            else add_all(Constant<1>());
            // All lanes have read the stage.
            __syncwarp();
            copy_next();
            ring.next();
        }
        // Lanes that share lines exchange halves of their sums, until each has one.
        float sums[WIDE * ROWS];
#pragma unroll
        for (int i = 0; i < WIDE * ROWS; i++) sums[i] = totals[i / ROWS][i % ROWS];
        int apart = LANES / 2;
#pragma unroll
        for (int half = WIDE * ROWS / 2; half > 0; half /= 2) {
            const bool upper = (lane & apart) != 0;
#pragma unroll
            for (int i = 0; i < half; i++) {
                const float kept = upper ? sums[half + i] : sums[i], given = upper ? sums[i] : sums[half + i];
                sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, apart);
            }
            apart /= 2;
        }
        constexpr int SHARE = LANES / (WIDE * ROWS);
#pragma unroll
        for (int left = SHARE / 2; left > 0; left /= 2) sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], left);
        const int which = lane % LANES / SHARE, row = which % ROWS;
        const long long column = (long long)here.team * LINES + line + which / ROWS;
        if (lane % SHARE == 0 && column < matrix.n && row < (int)m) finish(here.number, sums[0], (long long)row, column);
        here.advance(matrices, teams);
    }
#if __CUDA_ARCH__ < 900
    // The last groups of copies are empty.
    wait<0>();
#endif
}
