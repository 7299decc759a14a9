// Convolutions of 16-bit floats on tensor cores, as implicit GEMMs of windows and filters: a block of eight warps
// computes tiles of 128 positions and WIDE filters of a group, from slices of 32 along the windows. While a slice is
// multiplied, the next one is loaded into registers. Contiguous elements are read eight at a time.

#define TALL 128
#define DEPTH 32
#define LEFT_PITCH (DEPTH + 8)
#define RIGHT_PITCH (WIDE + 8)
#define WARPS_ACROSS (WIDE / 32)
#define WARP_TALL (TALL * WARPS_ACROSS / 8)
#define RIGHT_LOADS (WIDE / 64)

__device__ __forceinline__ void load_fragments(unsigned int (&to)[4], const IN *from) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_turned_fragments(unsigned int (&to)[4], const IN *from) {
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void multiply(
    float (&sums)[4], const unsigned int (&a)[4], const unsigned int b0, const unsigned int b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." BITS "." BITS
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

union Eight {
    uint4 whole;
    IN each[8];
};

extern "C" __global__ void __launch_bounds__(256) NAME(PARAMETERS) {
    __shared__ __align__(16) IN left[2][TALL * LEFT_PITCH];
    __shared__ __align__(16) IN right[2][DEPTH * RIGHT_PITCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / WARPS_ACROSS * WARP_TALL, warp_column = warp % WARPS_ACROSS * 32;
    const long long positions = batch * out_height * out_width;
    const int group_filters = (int)(filters / groups), group_channels = (int)(channels / groups);
    const int whole = (int)(taps_down * taps_across) * group_channels, begin = (int)(blockIdx.y * part);
    const int depth = begin + part < whole ? begin + (int)part : whole;
    out += blockIdx.y * part_size;
    const long long across = (group_filters + WIDE - 1) / WIDE, down = (positions + TALL - 1) / TALL;
    const bool wide_input = whole_input && (unsigned long long)input % 16 == 0;
    const bool wide_filter = whole_filter && (unsigned long long)filter % 16 == 0;
    const Eight nothing = {make_uint4(0, 0, 0, 0)};

    for (long long tile = blockIdx.x; tile < across * down * groups; tile += gridDim.x) {
        const int column = (int)(tile % across) * WIDE;
        const long long row = tile / across % down * TALL, group = tile / (across * down);
        const IN *image = input + group * group_channels * in_channel;
        const IN *weights = filter + group * group_filters * tap_filter;

        // What this thread reads of a slice: eight consecutive elements of two windows, and of some taps.
        int left_row[2], left_depth[2];
        Window windows[2];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const int at = threadIdx.x + 256 * u;
            left_row[u] = wide_input ? at / 4 : at % TALL;
            left_depth[u] = (wide_input ? at % 4 : at / TALL) * 8;
            windows[u].image = 0;
            windows[u].y = windows[u].x = NOWHERE;
            if (row + left_row[u] < positions) WINDOW(row + left_row[u], windows[u]);
        }
        auto read_left = [&](const int u, const int start) {
            Eight read = nothing;
            int p = start + left_depth[u];
            if (p >= depth) return read;
            int tap = p / group_channels, channel = p - tap * group_channels;
            int i = tap / (int)taps_across, j = tap - i * (int)taps_across;
            if (wide_input) {
                const long long y = windows[u].y + i * dilation_down, x = windows[u].x + j * dilation_across;
                if (within(y, height) && within(x, width)) {
                    const IN *from = image + windows[u].image + y * in_down + x * in_across + channel;
                    read.whole = *(const uint4 *)from;
                }
                return read;
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const long long y = windows[u].y + i * dilation_down, x = windows[u].x + j * dilation_across;
                if (p + e < depth && within(y, height) && within(x, width)) {
                    read.each[e] = image[windows[u].image + y * in_down + x * in_across + channel * in_channel];
                }
                if (++channel == group_channels) {
                    channel = 0;
                    if (++j == taps_across) {
                        j = 0;
                        i++;
                    }
                }
            }
            return read;
        };
        auto read_right = [&](const int u, const int start) {
            const int at = threadIdx.x + 256 * u;
            const int p = start + at / (WIDE / 8), first = column + at % (WIDE / 8) * 8;
            Eight read = nothing;
            if (p >= depth || first >= group_filters) return read;
            const int tap = p / group_channels, channel = p - tap * group_channels;
            const int i = tap / (int)taps_across, j = tap - i * (int)taps_across;
            const IN *from = weights + i * tap_down + j * tap_across + channel * tap_channel + first * tap_filter;
            if (wide_filter) {
                read.whole = *(const uint4 *)from;
                return read;
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                if (first + e < group_filters) read.each[e] = from[e * tap_filter];
            }
            return read;
        };
        Eight next_left[2], next_right[RIGHT_LOADS];
        auto read = [&](const int start) {
#pragma unroll
            for (int u = 0; u < 2; u++) next_left[u] = read_left(u, start);
#pragma unroll
            for (int u = 0; u < RIGHT_LOADS; u++) next_right[u] = read_right(u, start);
        };
        auto put = [&](const int side) {
#pragma unroll
            for (int u = 0; u < 2; u++) {
                *(uint4 *)&left[side][left_row[u] * LEFT_PITCH + left_depth[u]] = next_left[u].whole;
            }
#pragma unroll
            for (int u = 0; u < RIGHT_LOADS; u++) {
                const int at = threadIdx.x + 256 * u;
                *(uint4 *)&right[side][at / (WIDE / 8) * RIGHT_PITCH + at % (WIDE / 8) * 8] = next_right[u].whole;
            }
        };

        float sums[WARP_TALL / 16][4][4] = {};
        read(begin);
        put(0);
        __syncthreads();
        int side = 0;
        for (int start = begin; start < depth; start += DEPTH) {
            const bool more = start + DEPTH < depth;
            if (more) read(start + DEPTH);
#pragma unroll
            for (int step = 0; step < DEPTH; step += 16) {
                unsigned int a[WARP_TALL / 16][4], b[2][4];
#pragma unroll
                for (int i = 0; i < WARP_TALL / 16; i++) {
                    const int at_row = warp_row + i * 16 + lane % 16;
                    load_fragments(a[i], &left[side][at_row * LEFT_PITCH + step + lane / 16 * 8]);
                }
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int at_column = warp_column + j * 16 + lane / 16 * 8;
                    load_turned_fragments(b[j], &right[side][(step + lane % 16) * RIGHT_PITCH + at_column]);
                }
#pragma unroll
                for (int i = 0; i < WARP_TALL / 16; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                    }
                }
            }
            if (more) put(side ^ 1);
            __syncthreads();
            side ^= 1;
        }

#pragma unroll
        for (int i = 0; i < WARP_TALL / 16 * 2; i++) {
            const long long position = row + warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
            if (position >= positions) continue;
            long long place;
            PLACE(position, place);
            OUT *to = out + place + group * group_filters * out_filter;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int number = column + warp_column + j * 8 + lane % 4 * 2;
                if (number < group_filters) to[number * out_filter] = OUT_OF(sums[i / 2][j][i % 2 * 2]);
                if (number + 1 < group_filters) to[(number + 1) * out_filter] = OUT_OF(sums[i / 2][j][i % 2 * 2 + 1]);
            }
        }
    }
}
