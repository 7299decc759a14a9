// Warpgroups of four warps (sm_90a): products of tiles in shared memory, barriers that count arrivals, and registers that move
// from one warpgroup to another. This text comes after tensor.cuh.
//
// Tiles lie in panels of 64 columns: a row of a panel has 128 bytes, and of each eight rows the 16-byte pieces are permuted, so
// that no eight neighbours in a column share their banks. Panels start at multiples of 1024 bytes.

typedef unsigned long long u64;

constexpr int PANEL = 64, PANEL_ROW = 128;
constexpr int ROWS = 64 * GROUPS;

/// Where a piece of eight elements of a tile with so many rows is, in bytes.
__device__ __forceinline__ u32 piece_at(int row, int piece, int rows) {
    return piece / 8 * rows * PANEL_ROW + row * PANEL_ROW + ((piece ^ row) & 7) * 16;
}

/// What products are told about a tile: its place, and how far its panels and its groups of eight rows are apart.
__device__ __forceinline__ u64 described(u32 place, int rows) {
    const u64 panel = rows * PANEL_ROW / 16, group = 8 * PANEL_ROW / 16, permuted = 1;
    return permuted << 62 | group << 32 | panel << 16 | (place & 0x3ffff) >> 4;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most LEFT groups of products are unfinished.
template <int LEFT> __device__ __forceinline__ void products_finished() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/// Keeps the compiler from using registers of unfinished products before this.
template <int N> __device__ __forceinline__ void hold(float (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int N> __device__ __forceinline__ void hold(u32 (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

__device__ __forceinline__ void barrier_begin(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives when all copies of this thread have.
__device__ __forceinline__ void barrier_arrive_with_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Waits for the end of a phase, of which every second has the same parity.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/// What was copied to shared memory before is seen by products after this.
__device__ __forceinline__ void copies_seen() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int REGISTERS> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
