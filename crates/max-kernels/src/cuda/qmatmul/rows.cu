// out[r, j] = epilogue(sum over p of x[r, p] * w[j, p]) for quantized weights w, ROWS rows at a time.
//
// A block computes TILES * 16 columns. Its eight warps take turns with the chunks of the depth: each copies its own chunks to a
// ring of STAGES in shared memory, so that copies never wait for another warp, and multiplies bytes on tensor cores, 16 columns
// and 8 rows at a time. The sums of groups are exact integers; they are scaled and added in the order of groups by each warp,
// and the warps' sums in the order of warps. That order depends on the depth alone.
//
// Another function has quantized the rows. If HAS_EXPERTS, the first axis of the grid is that of groups of rows, each with a
// matrix of its own; else it is that of passes of ROWS rows.

#define WARPS 8
#define COLUMNS (TILES * 16)
#define OCTETS (ROWS / 8)
#define FACTOR (HAS_MIN ? 2 : 1)
#define PART (COLUMNS + 4)
#define SLICES (CHUNK / SLICE)

// A float whose last bit counts one: integers below 2^22 that are added to its bits are added to the float.
#define ONES 0x4b400000
#define ONES_FLOAT 12582912.0f

// The sums of products of 16 columns of weights and 8 rows, as floats that are ONES_FLOAT too large.
__device__ __forceinline__ void multiply(int (&sums)[4], const unsigned (&a)[4], uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32." WEIGHT ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(ONES));
}

__device__ __forceinline__ void multiply_half(int (&sums)[4], unsigned top, unsigned bottom, unsigned b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32." WEIGHT ".s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
        : "r"(top), "r"(bottom), "r"(b), "r"(ONES));
}

// Adds the scaled sums of a group to those of two columns of weights, `g` and `g + 8`, and two rows.
__device__ __forceinline__ void add_group(
    float (&totals)[4], const int (&sums)[4], const float *top, const float *bottom, const float (&units)[2],
    const float (&minima)[2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *const factor = i < 2 ? top : bottom;
        totals[i] = fmaf(factor[0] * units[i % 2], __int_as_float(sums[i]) - ONES_FLOAT, totals[i]);
        if (HAS_MIN) totals[i] = fmaf(-factor[1], minima[i % 2], totals[i]);
    }
}

// Where a lane's bytes of each eight rows are, and the scales of the rows of its sums.
struct Activations {
    const unsigned char *codes[OCTETS], *scales[OCTETS][2];
};

// A warp's chunks are at the same place in vectors of sixteen bytes.
static_assert(WARPS * CHUNK_BYTES % 16 == 0, "chunks of a warp");

// The bytes of a chunk that does not have all slices, or has.
#define BYTES_OF(slices) ((slices)*SLICE / ELEMENTS * BYTES)

// What a warp copies next: the vectors of each lane, every fourth of each eighth row, and how many bytes there are from the
// first one on.
struct Source {
    const unsigned char *vectors[COLUMNS / 8];
    int left[COLUMNS / 8];

    // The first chunk of a warp in a tile; `last` is the last column that exists.
    __device__ __forceinline__ void seek(const Weights &tile, int last, int lane) {
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i++) {
            const int row = i * 8 + lane / 4;
            const unsigned char *const from = tile.codes_of(row < last ? row : last);
            vectors[i] = from - skew(from) + lane % 4 * 16;
            left[i] = skew(from) + CHUNK_BYTES - lane % 4 * 16;
        }
    }

    // Copies a chunk and goes on to the next one.
    __device__ __forceinline__ void copy(unsigned char *stage, int slices, int lane) {
        const int missing = CHUNK_BYTES - BYTES_OF(slices);
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i++) {
            copy_vectors<VECTORS, 4>(stage + (i * 8 + lane / 4) * ROW_BYTES + lane % 4 * 16, vectors[i], left[i] - missing);
            vectors[i] += WARPS * CHUNK_BYTES;
        }
    }
};

#if IS_APART
// Copies the scales of a chunk.
__device__ __forceinline__ void copy_scales(
    const Weights &tile, unsigned char *stage, int last, int chunk, int slices, int lane) {
    const int count = tile.scale_count(chunk, slices);
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++) {
        const int row = i * 16 + lane / 2;
        fetch<2, 2>(stage + COLUMNS * ROW_BYTES + row * SCALE_ROW_BYTES, tile.scales_of(row < last ? row : last), count,
                    lane % 2);
    }
}
#endif

// Where the rows of a lane are in a stage: the one whose factors it reads, and those of its products.
struct Places {
    int factors, rows[TILES][2];
};

// Adds the products of a chunk, which has all slices if WHOLE.
template <int ALIGNMENT, bool WHOLE>
__device__ __forceinline__ void add_chunk(
    const Weights &tile, const unsigned char *stage, const Places &places, float *factors, int last, int chunk, int slices,
    const Activations &x, int lane, float (&totals)[TILES][OCTETS][4]) {
    const int g = lane / 4, t = lane % 4;
    Activations from = x;
#pragma unroll
    for (int octet = 0; octet < OCTETS; octet++) {
        from.codes[octet] += (long long)chunk * (SLICES * 8 * 32);
        from.scales[octet][0] += (long long)chunk * (SLICES * 8 * 8);
        from.scales[octet][1] += (long long)chunk * (SLICES * 8 * 8);
    }
    {
        const int row = lane % COLUMNS;
        const unsigned char *const codes = stage + places.factors;
#if IS_APART
        const unsigned char *const scales =
            stage + COLUMNS * ROW_BYTES + row * SCALE_ROW_BYTES + skew(tile.scales_of(row < last ? row : last));
#else
        const unsigned char *const scales = codes;
#endif
        float own[COLUMNS * GROUPS / 32][FACTOR];
#pragma unroll
        for (int i = 0; i < COLUMNS * GROUPS / 32; i++) {
            const int group = i * (32 / COLUMNS) + lane / COLUMNS;
            if (WHOLE || group * GROUP < slices * SLICE) tile.factors(codes, scales, chunk, group, own[i]);
        }
#pragma unroll
        for (int i = 0; i < COLUMNS * GROUPS / 32; i++) {
            const int group = i * (32 / COLUMNS) + lane / COLUMNS;
#pragma unroll
            for (int f = 0; f < FACTOR; f++) factors[(group * COLUMNS + row) * FACTOR + f] = own[i][f];
        }
    }
    __syncwarp();
    const auto row_at = [&](int place) { return Row<ALIGNMENT>(stage + place, t); };
    const Row<ALIGNMENT> rows[TILES][2] = {
        {row_at(places.rows[0][0]), row_at(places.rows[0][1])},
#if TILES == 2
        {row_at(places.rows[1][0]), row_at(places.rows[1][1])},
#endif
    };
    const float *const own_factors = factors + g * FACTOR;
    const auto step = [&](int s) {
        unsigned a[TILES][4];
#pragma unroll
        for (int tile16 = 0; tile16 < TILES; tile16++) {
            const int block = s * SLICE / ELEMENTS * BYTES, base = s * SLICE % ELEMENTS;
            pair<ALIGNMENT>(rows[tile16][0], block, base, t, a[tile16][0], a[tile16][2]);
            pair<ALIGNMENT>(rows[tile16][1], block, base, t, a[tile16][1], a[tile16][3]);
        }
#pragma unroll
        for (int octet = 0; octet < OCTETS; octet++) {
            const uint2 b = *(const uint2 *)(from.codes[octet] + s * (8 * 32));
            float units[2] = {};
            int all[2] = {}, half[2] = {};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint2 scale = *(const uint2 *)(from.scales[octet][i] + s * (8 * 8));
                units[i] = __uint_as_float(scale.x);
                all[i] = (int)scale.y >> 16;
                half[i] = (int)(short)(scale.y & 0xffff);
            }
#if GROUP == 32
            const float minima[2] = {units[0] * (float)all[0], units[1] * (float)all[1]};
#pragma unroll
            for (int tile16 = 0; tile16 < TILES; tile16++) {
                int sums[4];
                multiply(sums, a[tile16], b);
                const float *const factor = own_factors + (s * COLUMNS + tile16 * 16) * FACTOR;
                add_group(totals[tile16][octet], sums, factor, factor + 8 * FACTOR, units, minima);
            }
#else
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int sum[2] = {h == 0 ? half[0] : all[0] - half[0], h == 0 ? half[1] : all[1] - half[1]};
                const float minima[2] = {units[0] * (float)sum[0], units[1] * (float)sum[1]};
#pragma unroll
                for (int tile16 = 0; tile16 < TILES; tile16++) {
                    int sums[4];
                    multiply_half(sums, a[tile16][h * 2], a[tile16][h * 2 + 1], h == 0 ? b.x : b.y);
                    const float *const factor = own_factors + ((s * 2 + h) * COLUMNS + tile16 * 16) * FACTOR;
                    add_group(totals[tile16][octet], sums, factor, factor + 8 * FACTOR, units, minima);
                }
            }
#endif
        }
    };
    if (WHOLE) {
#pragma unroll
        for (int s = 0; s < SLICES; s++) step(s);
    } else {
#pragma unroll 1
        for (int s = 0; s < slices; s++) step(s);
    }
}

#if HAS_EXPERTS
// A number of a group; one that is too large for a `long long` is the largest.
template <typename I> __device__ __forceinline__ long long number_of(I index) {
    const long long number = (long long)index;
    return index > (I)0 && number < 0 ? 0x7fffffffffffffffll : number;
}
#endif

extern "C" __global__ void __launch_bounds__(256, BLOCKS) NAME(
    const unsigned char *codes, const unsigned char *scales, const unsigned char *x_codes, const unsigned char *x_scales,
    OUT *out, const OUT *bias, const OUT *residual, const START *starts, const ID *ids,
    unsigned long long *report,
    long long m, long long n, long long k, long long code_row, long long scale_row, long long group_size, long long shift,
    long long out_row, long long out_col, long long residual_row,
    long long residual_col, long long starts_step, long long ids_step, long long count, long long code_matrix,
    long long scale_matrix) {
    extern __shared__ uint4 arena[];
    unsigned char *const bytes = (unsigned char *)arena;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const long long out_batch = 0, residual_batch = 0;
    unsigned char *const ring = bytes + warp * (STAGES * STAGE);
    float *const factors = (float *)(bytes + FACTORS_AT) + warp * (GROUPS * COLUMNS * FACTOR);
    float *const parts = (float *)(bytes + PARTS_AT);
    Weights weights = {codes, scales, code_row, scale_row, (int)group_size, (int)shift};
#if HAS_EXPERTS
    // One thread reads the group, so that all have the same even if it changes meanwhile.
    __shared__ long long group[3];
    if (threadIdx.x == 0) {
        const long long first = number_of(starts[blockIdx.x * starts_step]);
        const long long last = number_of(starts[(blockIdx.x + 1) * starts_step]);
        const long long id = number_of(ids[blockIdx.x * ids_step]);
        const bool outside = last < 0 || last > m, reversed = first < 0 || first > last, unknown = id >= count;
        if ((outside || reversed || unknown) && blockIdx.y == 0) {
            if (unknown) complain(report, id, count, 0);
            else complain(report, outside ? last : first, outside ? m + 1 : last + 1, 0);
        }
        const bool empty = outside || reversed || unknown || id < 0;
        group[0] = empty ? 0 : first;
        group[1] = empty ? 0 : last;
        group[2] = empty ? 0 : id;
    }
    __syncthreads();
    const long long begin = group[0], end = group[1];
    weights.codes += group[2] * code_matrix;
    weights.scales += group[2] * scale_matrix;
#else
    const long long begin = (long long)blockIdx.x * ROWS, end = begin + ROWS < m ? begin + ROWS : m;
#endif
    const int columns = (int)n, tiles = (columns + COLUMNS - 1) / COLUMNS;
    const int groups = (int)(k / SLICE), chunks = (groups + SLICES - 1) / SLICES;
    const auto slices_of = [&](int chunk) {
        const int left = groups - chunk * SLICES;
        return left < SLICES ? left : SLICES;
    };
    // The last column of a tile that exists.
    const auto last_of = [&](int tile) { return columns - 1 - tile * COLUMNS; };
    const bool aligned =
        IS_ALIGNABLE && (((unsigned long long)weights.codes | (unsigned long long)code_row) & 3) == 0;
    for (long long row0 = begin; row0 < end; row0 += ROWS) {
        int next_tile = warp < chunks ? (int)blockIdx.y : tiles;
        int next = warp;
        Source source;
        const auto seek = [&] {
            if (next_tile < tiles) source.seek(weights.from(next_tile * COLUMNS, warp), last_of(next_tile), lane);
        };
        seek();
        const auto copy_next = [&](int slot) {
            if (next_tile < tiles) {
                unsigned char *const stage = ring + slot * STAGE;
                source.copy(stage, slices_of(next), lane);
#if IS_APART
                copy_scales(weights.from(next_tile * COLUMNS, next), stage, last_of(next_tile), next, slices_of(next), lane);
#endif
                next += WARPS;
                if (next >= chunks) {
                    next = warp;
                    next_tile += (int)gridDim.y;
                    seek();
                }
            }
            commit();
        };
#pragma unroll 1
        for (int slot = 0; slot < STAGES; slot++) copy_next(slot);
        const int present = end - row0 < ROWS ? (int)(end - row0) : ROWS;
        // The row of this lane's bytes and those of its sums; rows that do not exist are the last one, and not stored.
        Activations activations;
        const auto place_of = [&](int number) {
            const long long row = row0 + (number < present ? number : present - 1);
            return (row / 8 * groups) * 8 + row % 8;
        };
#pragma unroll
        for (int octet = 0; octet < OCTETS; octet++) {
            activations.codes[octet] = x_codes + place_of(octet * 8 + g) * 32 + t * 8;
            activations.scales[octet][0] = x_scales + place_of(octet * 8 + t * 2) * 8;
            activations.scales[octet][1] = x_scales + place_of(octet * 8 + t * 2 + 1) * 8;
        }
        int slot = 0;
        for (int tile = (int)blockIdx.y; tile < tiles; tile += (int)gridDim.y) {
            const int first = tile * COLUMNS;
            const int last = last_of(tile);
            const Weights corner = weights.from(first, warp);
            const auto place_in_stage = [&](int row) {
                return row * ROW_BYTES + skew(corner.codes_of(row < last ? row : last));
            };
            Places places;
            places.factors = place_in_stage(lane % COLUMNS);
#pragma unroll
            for (int i = 0; i < TILES * 2; i++) places.rows[i / 2][i % 2] = place_in_stage(g + i * 8);
            float totals[TILES][OCTETS][4] = {};
#pragma unroll 1
            for (int chunk = warp; chunk < chunks; chunk += WARPS) {
                wait<STAGES - 1>();
                __syncwarp();
                unsigned char *const stage = ring + slot * STAGE;
                const Weights here = IS_APART ? weights.from(first, chunk) : weights;
                const int slices = slices_of(chunk);
                if (slices < SLICES) {
                    add_chunk<1, false>(here, stage, places, factors, last, chunk, slices, activations, lane, totals);
                } else if (IS_ALIGNABLE && aligned) {
                    add_chunk<IS_ALIGNABLE ? 4 : 1, true>(
                        here, stage, places, factors, last, chunk, SLICES, activations, lane, totals);
                } else {
                    add_chunk<1, true>(here, stage, places, factors, last, chunk, SLICES, activations, lane, totals);
                }
                // All lanes have read the stage and the factors.
                __syncwarp();
                copy_next(slot);
                slot = slot + 1 == STAGES ? 0 : slot + 1;
            }
            float *const part = parts + warp * (ROWS * PART);
#pragma unroll
            for (int tile16 = 0; tile16 < TILES; tile16++) {
#pragma unroll
                for (int octet = 0; octet < OCTETS; octet++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int row = octet * 8 + t * 2 + i % 2, column = tile16 * 16 + g + i / 2 * 8;
                        part[row * PART + column] = totals[tile16][octet][i];
                    }
                }
            }
            __syncthreads();
            for (int at = threadIdx.x; at < COLUMNS * present; at += 256) {
                const int row = at / COLUMNS, column = at % COLUMNS;
                if (first + column < columns) {
                    float sum = 0.0f;
#pragma unroll
                    for (int other = 0; other < WARPS; other++) sum += parts[(other * ROWS + row) * PART + column];
                    FINISH(sum, 0, row0 + row, first + column);
                }
            }
            // The parts are read before the next ones are written.
            __syncthreads();
        }
        // The last groups of copies are empty.
        wait<0>();
    }
}
