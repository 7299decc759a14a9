// Convolutions as implicit GEMMs of windows and filters, for every type: a block of 256 threads computes tiles of 64
// positions and 64 filters of a group, sixteen elements per thread, from slices of 16 along the windows.

#define TILE 64
#define DEPTH 16

extern "C" __global__ void __launch_bounds__(256) NAME(PARAMETERS) {
    __shared__ SUM left[DEPTH][TILE + 1];
    __shared__ SUM right[DEPTH][TILE + 1];
    __shared__ Window windows[TILE];
    __shared__ long long taps[DEPTH][4];
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    const long long positions = batch * out_height * out_width;
    const long long group_filters = filters / groups, group_channels = channels / groups;
    const long long whole = taps_down * taps_across * group_channels, begin = blockIdx.y * part;
    const long long depth = begin + part < whole ? begin + part : whole;
    out += blockIdx.y * part_size;
    const long long across = (group_filters + TILE - 1) / TILE, down = (positions + TILE - 1) / TILE;
    for (long long tile = blockIdx.x; tile < across * down * groups; tile += gridDim.x) {
        const long long column = tile % across * TILE, row = tile / across % down * TILE;
        const long long group = tile / (across * down);
        const IN *image = input + group * group_channels * in_channel;
        const IN *weights = filter + (group * group_filters + column) * tap_filter;
        if (threadIdx.x < TILE) {
            Window window = {0, NOWHERE, NOWHERE};
            if (row + threadIdx.x < positions) WINDOW(row + threadIdx.x, window);
            windows[threadIdx.x] = window;
        }
        SUM sums[4][4] = {};
        for (long long start = begin; start < depth; start += DEPTH) {
            if (threadIdx.x < DEPTH) {
                // The offsets of each tap of the slice from the start of a window and of the filter.
                const long long p = start + threadIdx.x;
                long long channel, j;
                const long long tap = divide(p, group_channels, channel);
                const long long i = divide(tap, taps_across, j);
                taps[threadIdx.x][0] = p < depth ? i * dilation_down : NOWHERE;
                taps[threadIdx.x][1] = j * dilation_across;
                taps[threadIdx.x][2] = channel * in_channel;
                taps[threadIdx.x][3] = i * tap_down + j * tap_across + channel * tap_channel;
            }
            __syncthreads();
            for (int at = threadIdx.x; at < TILE * DEPTH; at += 256) {
                // Neighbouring threads read neighbouring elements: along channels, or along columns.
                const bool runs = in_channel == 1;
                const int i = runs ? at / DEPTH : at % TILE, p = runs ? at % DEPTH : at / TILE;
                const long long line = windows[i].y + taps[p][0], place = windows[i].x + taps[p][1];
                const bool inside = within(line, height) && within(place, width);
                const IN *from = image + windows[i].image + line * in_down + place * in_across + taps[p][2];
                left[p][i] = inside ? SUM_OF_IN(*from) : SUM(0);
            }
            for (int at = threadIdx.x; at < TILE * DEPTH; at += 256) {
                const bool runs = tap_filter == 1;
                const int j = runs ? at % TILE : at / DEPTH, p = runs ? at / TILE : at % DEPTH;
                const bool inside = column + j < group_filters && start + p < depth;
                right[p][j] = inside ? SUM_OF_IN(weights[taps[p][3] + j * tap_filter]) : SUM(0);
            }
            __syncthreads();
#pragma unroll
            for (int p = 0; p < DEPTH; p++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sums[i][j] = STEP(left[p][y + 16 * i], right[p][x + 16 * j], sums[i][j]);
                    }
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const long long position = row + y + 16 * i;
            if (position >= positions) continue;
            long long place;
            PLACE(position, place);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const long long number = column + x + 16 * j;
                if (number < group_filters) {
                    out[place + (group * group_filters + number) * out_filter] = OUT_OF(sums[i][j]);
                }
            }
        }
        __syncthreads();
    }
}
