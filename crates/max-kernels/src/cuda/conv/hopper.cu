// Convolutions of 16-bit floats on the tensor cores of Hopper GPUs, as implicit GEMMs of windows and filters. A block
// computes tiles of TALL positions and WIDE filters of a group, in steps of one tap and 64 channels. Some warpgroups copy
// what the others multiply: they take turns with a ring of stages in shared memory, each with a barrier that says that it
// is full and one that says that it is free. Zeros take the place of what is outside the image or past the last channel.
// A part of a window is a number of steps.
//
// Where SLIDING is set, the pixels that a tile sees are copied once for all taps: a strip of the images, padded with as few
// zeros as keep their rows and images apart, in which a tap is a distance. While one strip is read, the next one is copied.
// Else pixels are copied for each tap.
//
// Pixels and taps are rows of 128 bytes in shared memory, whose pieces of 16 bytes are permuted by the number of the row,
// so that eight of them in any column are in different banks.

#define TALL (64 * WARPGROUPS)
#define MULTIPLIERS (128 * WARPGROUPS)
#define DEPTH 64
#define PITCH 128
#define LEFT_BYTES (SLIDING ? 0 : TALL * PITCH)
#define PANEL_BYTES (DEPTH * PITCH)
#define RIGHT_BYTES (WIDE / 64 * PANEL_BYTES)
#define BARRIER_BYTES 1024
// The rows that are copied at once.
#define ROWS (COPIERS / 8)

// Copies 16 bytes, or puts zeros and reads nothing.
__device__ __forceinline__ void copy_piece(const unsigned int to, const IN *from, const bool exists) {
    const int bytes = exists ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The same for what the block will copy again soon.
__device__ __forceinline__ void copy_piece_again(const unsigned int to, const IN *from, const bool exists) {
    const int bytes = exists ? 16 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void prepare(const unsigned int barrier, const int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(const unsigned int barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits until a phase of a barrier is over: even ones and odd ones alternate. A thread sleeps for as long as it can.
__device__ __forceinline__ void wait_for(const unsigned int barrier, const unsigned int phase) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
                 "@!done bra again;\n}" ::"r"(barrier), "r"(phase), "r"(1000000)
                 : "memory");
}

#define SUMS(j) "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3])
#define EIGHT_SUMS(j) SUMS(j), SUMS(j + 1), SUMS(j + 2), SUMS(j + 3), SUMS(j + 4), SUMS(j + 5), SUMS(j + 6), SUMS(j + 7)
#define PLACES_64 \
    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31}, "
#define PLACES_128 \
    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define BEGIN "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n"
#define TYPES "k16.f32." BITS "." BITS

// Describes rows of 128 permuted bytes: 1024 bytes from eight of them to the next, PANEL_BYTES from 64 columns to the next.
// The lower half counts in 16 bytes where the rows start.
__device__ __forceinline__ unsigned int described(const unsigned int at) {
    return (PANEL_BYTES >> 4) << 16 | (at >> 4 & 0x3fff);
}
__device__ __forceinline__ unsigned long long whole(const unsigned int half) {
    return (1ull << 30 | 1024ull >> 4) << 32 | half;
}

// Adds the product of 64 x 16 elements and 16 x WIDE. The left ones are in registers, or in shared memory.
#if SLIDING
__device__ __forceinline__ void multiply(
    float (&sums)[WIDE / 8][4], const unsigned int (&a)[4], const unsigned int right) {
#if WIDE == 64
    asm volatile(BEGIN "64" TYPES PLACES_64 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                 : EIGHT_SUMS(0)
#else
    asm volatile(BEGIN "128" TYPES PLACES_128 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
                 : EIGHT_SUMS(0), EIGHT_SUMS(8)
#endif
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole(right)));
}

__device__ __forceinline__ void load_fragments(unsigned int (&to)[4], const unsigned int from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
#else
__device__ __forceinline__ void multiply(
    float (&sums)[WIDE / 8][4], const unsigned int left, const unsigned int right) {
#if WIDE == 64
    asm volatile(BEGIN "64" TYPES PLACES_64 "%32, %33, p, 1, 1, 0, 1;\n}"
                 : EIGHT_SUMS(0)
#else
    asm volatile(BEGIN "128" TYPES PLACES_128 "%64, %65, p, 1, 1, 0, 1;\n}"
                 : EIGHT_SUMS(0), EIGHT_SUMS(8)
#endif
                 : "l"(whole(left)), "l"(whole(right)));
}
#endif

// What threads copied is there for the tensor cores.
__device__ __forceinline__ void see_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Neither what is before this nor what is after it moves across the products that add to these registers.
__device__ __forceinline__ void settle(float (&sums)[WIDE / 8][4]) {
#pragma unroll
    for (int j = 0; j < WIDE / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(sums[j][e])::"memory");
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + COPIERS, BLOCKS) NAME(
    PARAMETERS, long long strip_pixels ENDING_PARAMETERS) {
    // Barriers, the ring of taps, then that of pixels, or strips and where their pixels come from.
    extern __shared__ __align__(1024) unsigned char room[];
    const unsigned int full = (unsigned int)__cvta_generic_to_shared(room), free = full + 8 * STAGES;
    const unsigned int right = full + BARRIER_BYTES, left = right + STAGES * RIGHT_BYTES;
    const int thread = threadIdx.x, lane = thread % 32;
    const int positions = (int)(batch * out_height * out_width), last = positions - 1;
    const int group_filters = (int)(filters / groups), group_channels = (int)(channels / groups);
    const int down = (int)taps_down, across = (int)taps_across, taps = down * across;
    const int all = (group_channels + DEPTH - 1) / DEPTH * taps;
    const int begin = (int)(blockIdx.y * part), end = begin + part < all ? begin + (int)part : all;
    const int tiles_across = (group_filters + WIDE - 1) / WIDE, tiles_down = (positions + TALL - 1) / TALL;
    const int row_step = (int)dilation_down, column_step = (int)dilation_across;
    const auto split = [&](const int position, int &number, int &y, int &x) {
        const int rest = position / (int)out_width;
        x = position - rest * (int)out_width;
        number = rest / (int)out_height;
        y = rest - number * (int)out_height;
    };
#if SLIDING
    // The padded images: the zeros after a line, or after an image, are also those before the next one.
    const int strip = (int)strip_pixels, strip_bytes = strip * PITCH;
    const int line = (int)max(width + padding_across, (out_width - 1) * stride_across +
                                                          (taps_across - 1) * dilation_across + 1 - padding_across);
    const int lines = (int)max(height + padding_down, (out_height - 1) * stride_down +
                                                          (taps_down - 1) * dilation_down + 1 - padding_down);
    const int next_row = line * row_step - across * column_step;
    const auto place_of = [&](const int position) {
        int number, y, x;
        split(position, number, y, x);
        return (number * lines + y * (int)stride_down) * line + x * (int)stride_across;
    };
#endif
    if (thread == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            prepare(full + 8 * stage, COPIERS);
            prepare(free + 8 * stage, MULTIPLIERS / 32);
        }
    }
    __syncthreads();

    // A ring starts over in the next phase of its barriers; all tiles share it.
    int stage = 0;
    unsigned int phase = 0;
#if SLIDING
    int side = 0;
#endif
    const auto next_stage = [&]() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    };
    if (thread >= MULTIPLIERS) {
#if MORE
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEWER));
#endif
        for (int tile = blockIdx.x; tile < tiles_across * tiles_down * (int)groups; tile += gridDim.x) {
            const int column = tile % tiles_across * WIDE;
            const int row = tile / tiles_across % tiles_down * TALL, group = tile / (tiles_across * tiles_down);
            const int copier = thread - MULTIPLIERS, piece = copier % 8, copied = copier / 8;
            const IN *image = input + group * group_channels + piece * 8;
            const IN *weights = filter + group * group_filters + column + piece * 8;
            // Neither pointer is taken apart again: an address is one multiplication.
            asm volatile("" : "+l"(image), "+l"(weights));
            const int left_swizzle = (piece ^ copied % 8) * 16 + copied * PITCH;
            int channel = begin / taps * DEPTH, tap = begin % taps;
            int i = tap / across, j = tap - i * across;
#if SLIDING
            // Where the pixels of the strip are: multiples of eight, negative ones too. Those outside the images are nowhere.
            constexpr int OUTSIDE = 1;
            int *places = (int *)(room + BARRIER_BYTES + STAGES * RIGHT_BYTES + 2 * strip_bytes);
            const int first = place_of(row);
            for (int q = copier; q < strip; q += COPIERS) {
                const int v = first + q, rest = v / line, number = rest / lines;
                const int x = v - rest * line - (int)padding_across, y = rest - number * lines - (int)padding_down;
                const bool exists = number < batch && (unsigned int)y < height && (unsigned int)x < width;
                places[q] = exists ? number * (int)in_batch + y * (int)in_down + x * (int)in_across : OUTSIDE;
            }
            asm volatile("bar.sync 1, %0;" ::"n"(COPIERS) : "memory");
            const auto copy_strip = [&](const int side, const int channel, const int from, const int to) {
                const bool some = channel + piece * 8 < group_channels;
                const unsigned int base = left + side * strip_bytes + left_swizzle;
#pragma unroll 4
                for (int q = from + copied; q < to; q += ROWS) {
                    const int place = places[q];
                    const bool exists = some && place != OUTSIDE;
                    copy_piece(base + (q - copied) * PITCH, image + (place + channel), exists);
                }
            };
            copy_strip(side, channel, 0, strip);
            const int slice = (strip + (taps - STAGES) * ROWS - 1) / ((taps - STAGES) * ROWS) * ROWS;
#else
            // The windows of the rows that this thread copies, and which taps of each are inside the image.
            int windows[TALL / ROWS];
            unsigned int inside[TALL / ROWS];
#pragma unroll
            for (int u = 0; u < TALL / ROWS; u++) {
                int number, y, x;
                split(min(row + copied + ROWS * u, last), number, y, x);
                y = y * (int)stride_down - (int)padding_down;
                x = x * (int)stride_across - (int)padding_across;
                windows[u] = number * (int)in_batch + y * (int)in_down + x * (int)in_across;
                inside[u] = 0;
                unsigned int bit = 1;
                for (int i = 0; i < down; i++) {
                    const bool some = (unsigned int)(y + i * row_step) < height;
                    for (int j = 0; j < across; j++, bit <<= 1) {
                        if (some && (unsigned int)(x + j * column_step) < width) inside[u] |= bit;
                    }
                }
            }
#endif
            for (int step = begin; step < end; step++) {
                wait_for(free + 8 * stage, phase ^ 1);
                const int to_tap = i * (int)tap_down + j * (int)tap_across + (channel + copied) * (int)tap_channel;
                const unsigned int to = right + stage * RIGHT_BYTES + left_swizzle;
                const int rest = group_channels - channel - copied;
#pragma unroll
                for (int panel = 0; panel < WIDE / 64; panel++) {
                    const bool some = column + panel * 64 + piece * 8 < group_filters;
#pragma unroll
                    for (int u = 0; u < DEPTH / ROWS; u++) {
                        const bool exists = some && ROWS * u < rest;
                        const int from = to_tap + u * ROWS * (int)tap_channel + panel * 64;
                        copy_piece(to + panel * PANEL_BYTES + u * ROWS * PITCH, weights + from, exists);
                    }
                }
#if SLIDING
                const int number = i * across + j - STAGES;
                if (number >= 0 && step + taps - number - STAGES < end) {
                    copy_strip(side ^ 1, channel + DEPTH, number * slice, min((number + 1) * slice, strip));
                }
#else
                const int at = i * row_step * (int)in_down + j * column_step * (int)in_across + channel;
                const unsigned int bit = channel + piece * 8 < group_channels ? 1u << (i * across + j) : 0;
                const unsigned int rows = left + stage * LEFT_BYTES + left_swizzle;
#pragma unroll
                for (int u = 0; u < TALL / ROWS; u++) {
                    copy_piece_again(rows + u * ROWS * PITCH, image + (windows[u] + at), inside[u] & bit);
                }
#endif
                asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full + 8 * stage) : "memory");
                next_stage();
                if (++j == across) {
                    j = 0;
                    if (++i == down) {
                        i = 0;
                        channel += DEPTH;
#if SLIDING
                        side ^= 1;
#endif
                    }
                }
            }
#if SLIDING
            asm volatile("bar.sync 1, %0;" ::"n"(COPIERS) : "memory");
#endif
        }
    } else {
#if MORE
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE));
#endif
        for (int tile = blockIdx.x; tile < tiles_across * tiles_down * (int)groups; tile += gridDim.x) {
            const int column = tile % tiles_across * WIDE;
            const int row = tile / tiles_across % tiles_down * TALL, group = tile / (tiles_across * tiles_down);
            float sums[WIDE / 8][4] = {};
#if SLIDING
            const int own = thread / 32 * 16 + lane % 16;
            const int tap = begin % taps;
            int i = tap / across, j = tap - i * across;
            int pixel = place_of(min(row + own, last)) - place_of(row) + i * row_step * line + j * column_step;
            auto read = [&](unsigned int (&a)[DEPTH / 16][4]) {
                wait_for(full + 8 * stage, phase);
                const unsigned int from =
                    left + side * strip_bytes + pixel * PITCH + ((lane / 16) ^ (pixel & 7)) * 16;
#pragma unroll
                for (int p = 0; p < DEPTH / 16; p++) load_fragments(a[p], from ^ p * 32);
                pixel += column_step;
                if (++j == across) {
                    j = 0;
                    pixel += next_row;
                    if (++i == down) {
                        i = 0;
                        pixel -= line * row_step * down;
                        side ^= 1;
                    }
                }
                see_copies();
            };
            // While the tensor cores are busy with one step, the fragments of the next one are read.
            auto use = [&](unsigned int (&a)[DEPTH / 16][4], unsigned int (&next)[DEPTH / 16][4], const bool more) {
                const int used = stage;
                settle(sums);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int p = 0; p < DEPTH / 16; p++) {
                    multiply(sums, a[p], described(right) + used * (RIGHT_BYTES / 16) + p * PITCH);
                }
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                next_stage();
                if (more) read(next);
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                settle(sums);
                if (lane == 0) arrive(free + 8 * used);
            };
            unsigned int fragments[2][DEPTH / 16][4];
            if (begin < end) read(fragments[0]);
            for (int step = begin; step < end; step += 2) {
                use(fragments[0], fragments[1], step + 1 < end);
                if (step + 1 < end) use(fragments[1], fragments[0], step + 2 < end);
            }
#else
            const unsigned int rows = described(left + thread / 128 * 64 * PITCH);
            int before = stage;
            for (int step = begin; step < end; step++) {
                wait_for(full + 8 * stage, phase);
                see_copies();
                settle(sums);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int p = 0; p < DEPTH / 16; p++) {
                    multiply(sums, rows + stage * (LEFT_BYTES / 16) + p * 2,
                             described(right) + stage * (RIGHT_BYTES / 16) + p * PITCH);
                }
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (lane == 0 && step > begin) arrive(free + 8 * before);
                before = stage;
                next_stage();
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            settle(sums);
            if (lane == 0 && begin < end) arrive(free + 8 * before);
#endif
            const auto ended = [&](const float product, const long long row, const long long column) -> float {
                const long long number = 0;
                ENDING
            };
            // Four neighbouring threads have pairs of columns of one row: they exchange them, so that each has eight.
            OUT *to = out + blockIdx.y * part_size + group * group_filters + column;
            const int quarter = lane % 4;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = row + thread / 32 * 16 + lane / 4 + half * 8;
                int number, y, x;
                split(at, number, y, x);
                const long long place = number * out_batch + y * out_down + x * out_across;
#pragma unroll
                for (int j = 0; j < WIDE / 8; j++) {
                    const int c = column + j * 8 + quarter * 2;
                    if (at > last || c >= group_filters) continue;
                    float *pair = &sums[j][half * 2];
                    pair[0] = ended(pair[0], at, group * group_filters + c);
                    pair[1] = ended(pair[1], at, group * group_filters + c + 1);
                }
#ifndef OUT_BITS
#pragma unroll
                for (int j = 0; j < WIDE / 8; j++) {
                    const int c = j * 8 + quarter * 2;
                    if (at > last || column + c >= group_filters) continue;
                    *(float2 *)(to + place + c) = make_float2(sums[j][half * 2], sums[j][half * 2 + 1]);
                }
#else
#pragma unroll
                for (int m = 0; m < WIDE / 32; m++) {
                    unsigned int w[4];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float *pair = &sums[4 * m + k][half * 2];
                        asm("cvt.rn." OUT_BITS "x2.f32 %0, %1, %2;" : "=r"(w[k]) : "f"(pair[1]), "f"(pair[0]));
                    }
#pragma unroll
                    for (int k = 0; k < 4; k += 2) {
                        const unsigned int other = __shfl_xor_sync(~0u, quarter & 1 ? w[k] : w[k + 1], 1);
                        (quarter & 1 ? w[k] : w[k + 1]) = other;
                    }
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const unsigned int other = __shfl_xor_sync(~0u, quarter & 2 ? w[k] : w[k + 2], 2);
                        (quarter & 2 ? w[k] : w[k + 2]) = other;
                    }
                    const int c = (4 * m + quarter) * 8;
                    if (at > last || column + c >= group_filters) continue;
                    *(uint4 *)(to + place + c) = make_uint4(w[0], w[1], w[2], w[3]);
                }
#endif
            }
        }
    }
}
