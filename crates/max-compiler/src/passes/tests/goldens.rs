//! What graphs become after the passes that keep every bit.

use expect_test::expect;

use super::{after, graph};

#[test]
fn canonicalize() {
    let body = graph(
        "%0: float32[n, 3], %1: int32[2], %2: float16[2]",
        "%3 = f32 2.0
         %4 = add(%3, %0) : float32[n, 3]
         %5 = broadcast_to(%3) {shape = [n, 3]} : float32[n, 3]
         %6 = mul(%5, %4) : float32[n, 3]
         %7 = max(%3, %6) : float32[n, 3]
         %8 = f32 0.0
         %9 = max(%8, %7) : float32[n, 3]
         %10 = sub(%3, %9) : float32[n, 3]
         %11 = transfer_to(%10) {device = \"cpu:0\"} : float32[n, 3]
         %12 = rebind(%11) {shape = [n, 3], message = \"\", layout = \"\"} : float32[n, 3]
         %13 = cast(%1) {dtype = \"float64\"} : float64[2]
         %14 = cast(%13) {dtype = \"int8\"} : int8[2]
         %15 = cast(%13) {dtype = \"float32\"} : float32[2]
         %16 = cast(%2) {dtype = \"float32\"} : float32[2]
         %17 = cast(%16) {dtype = \"float16\"} : float16[2]
         return %12, %14, %15, %17",
    );
    expect![[r#"
        graph "g"(%0: float32[n, 3], %1: int32[2], %2: float16[2]) {
          %3 = constant() {value = dense(float32[], [2.0]), device = "cpu:0"} : float32[]
          %4 = add(%0, %3) : float32[n, 3]
          %5 = mul(%4, %3) : float32[n, 3]
          %6 = max(%5, %3) : float32[n, 3]
          %7 = constant() {value = dense(float32[], [0.0]), device = "cpu:0"} : float32[]
          %8 = max(%7, %6) : float32[n, 3]
          %9 = sub(%3, %8) : float32[n, 3]
          %10 = cast(%1) {dtype = "float64"} : float64[2]
          %11 = cast(%10) {dtype = "int8"} : int8[2]
          %12 = cast(%1) {dtype = "float32"} : float32[2]
          return %9, %11, %12, %2
        }
    "#]]
    .assert_eq(&after("canonicalize", &body));
}

#[test]
fn broadcasts_that_shape_the_result_stay() {
    let body = graph(
        "%0: float32[1, 3], %1: float32[3]",
        "%2 = broadcast_to(%0) {shape = [4, 3]} : float32[4, 3]
         %3 = broadcast_to(%1) {shape = [4, 3]} : float32[4, 3]
         %4 = add(%2, %3) : float32[4, 3]
         return %4",
    );
    expect![[r#"
        graph "g"(%0: float32[1, 3], %1: float32[3]) {
          %2 = broadcast_to(%1) {shape = [4, 3]} : float32[4, 3]
          %3 = add(%0, %2) : float32[4, 3]
          return %3
        }
    "#]]
    .assert_eq(&after("canonicalize", &body));
}

#[test]
fn fold() {
    let body = graph(
        "%0: float32[2]",
        "%1 = f32 2.0
         %2 = f32 3.0
         %3 = add(%1, %2) : float32[]
         %4 = mul(%0, %3) : float32[2]
         %5 = shape_to_tensor() {dims = [2, 7], scalar = false} : int64[2]
         %6 = shape_to_tensor() {dims = [n], scalar = false} : int64[1]
         %7 = constant() {value = dense(int64[1], [9]), device = \"cpu:0\"} : int64[1]
         %8 = gather(%5, %7) {axis = 0} : int64[1]
         %9 = broadcast_to(%3) {shape = [99999]} : float32[99999]
         %10, %11 = split(%5) {sizes = [1, 1], axis = 0} : int64[1], int64[1]
         print(%3) {label = \"sum\"}
         %12 = constant() {value = dense(int64[], [-1]), device = \"cpu:0\"} : int64[]
         %13 = gather(%5, %12) {axis = 0} : int64[]
         return %4, %6, %9, %11, %13",
    );
    expect![[r#"
        graph "g"(%0: float32[2]) {
          %1 = constant() {value = dense(float32[], [5.0]), device = "cpu:0"} : float32[]
          %2 = mul(%0, %1) : float32[2]
          %3 = constant() {value = dense(int64[2], [2, 7]), device = "cpu:0"} : int64[2]
          %4 = shape_to_tensor() {dims = [n], scalar = false} : int64[1]
          %5 = constant() {value = dense(int64[1], [9]), device = "cpu:0"} : int64[1]
          %6 = gather(%3, %5) {axis = 0} : int64[1]
          %7 = broadcast_to(%1) {shape = [99999]} : float32[99999]
          %8 = constant() {value = dense(int64[1], [7]), device = "cpu:0"} : int64[1]
          print(%1) {label = "sum"}
          %9 = constant() {value = dense(int64[], [7]), device = "cpu:0"} : int64[]
          return %2, %4, %7, %8, %9
        }
    "#]]
    .assert_eq(&after("fold", &body));
}

#[test]
fn neutral_and_absorbing_numbers() {
    let body = graph(
        "%0: float32[n], %1: int32[n], %2: bool[n]",
        "%3 = f32 0.0
         %4 = f32 -0.0
         %5 = f32 1.0
         %6 = add(%0, %3) : float32[n]
         %7 = add(%6, %4) : float32[n]
         %8 = sub(%7, %3) : float32[n]
         %9 = sub(%8, %4) : float32[n]
         %10 = mul(%9, %5) : float32[n]
         %11 = div(%10, %5) : float32[n]
         %12 = pow(%11, %5) : float32[n]
         %13 = mul(%12, %3) : float32[n]
         %14 = i32 0
         %15 = add(%1, %14) : int32[n]
         %16 = mul(%15, %14) : int32[n]
         %17 = bool 1
         %18 = logical_and(%2, %17) : bool[n]
         %19 = logical_or(%2, %17) : bool[n]
         return %13, %16, %18, %19",
    );
    expect![[r#"
        graph "g"(%0: float32[n], %1: int32[n], %2: bool[n]) {
          %3 = constant() {value = dense(float32[], [0.0]), device = "cpu:0"} : float32[]
          %4 = constant() {value = dense(float32[], [-0.0]), device = "cpu:0"} : float32[]
          %5 = add(%0, %3) : float32[n]
          %6 = sub(%5, %4) : float32[n]
          %7 = mul(%6, %3) : float32[n]
          %8 = constant() {value = dense(int32[], [0]), device = "cpu:0"} : int32[]
          %9 = broadcast_to(%8) {shape = [n]} : int32[n]
          %10 = constant() {value = dense(bool[], [1]), device = "cpu:0"} : bool[]
          %11 = broadcast_to(%10) {shape = [n]} : bool[n]
          return %7, %9, %2, %11
        }
    "#]]
    .assert_eq(&after("identities", &body));
}

#[test]
fn functions_of_themselves() {
    let body = graph(
        "%0: float32[n], %1: bool[n]",
        "%2 = negate(%0) : float32[n]
         %3 = negate(%2) : float32[n]
         %4 = relu(%3) : float32[n]
         %5 = relu(%4) : float32[n]
         %6 = max(%5, %5) : float32[n]
         %7 = floor(%6) : float32[n]
         %8 = round(%7) : float32[n]
         %9 = negate(%8) : float32[n]
         %10 = abs(%9) : float32[n]
         %11 = logical_not(%1) : bool[n]
         %12 = logical_not(%11) : bool[n]
         %13 = bool 0
         %14 = where(%13, %10, %0) : float32[n]
         %15 = where(%12, %14, %14) : float32[n]
         return %10, %15",
    );
    expect![[r#"
        graph "g"(%0: float32[n], %1: bool[n]) {
          %2 = relu(%0) : float32[n]
          %3 = floor(%2) : float32[n]
          %4 = abs(%3) : float32[n]
          return %4, %0
        }
    "#]]
    .assert_eq(&after("identities", &body));
}

#[test]
fn views() {
    let body = graph(
        "%0: float32[2, 3, n], %1: float32[9, 8], %2: float32[1]",
        "%3 = permute(%0) {dims = [1, 2, 0]} : float32[3, n, 2]
         %4 = permute(%3) {dims = [1, 0, 2]} : float32[n, 3, 2]
         %5 = permute(%4) {dims = [2, 1, 0]} : float32[2, 3, n]
         %6 = reshape(%5) {shape = [6, n]} : float32[6, n]
         %7 = reshape(%6) {shape = [n, 6]} : float32[n, 6]
         %8 = reshape(%6) {shape = [2, 3, n]} : float32[2, 3, n]
         %9 = slice(%1) {starts = [1, 7], sizes = [6, 8], steps = [1, -1]} : float32[6, 8]
         %10 = slice(%9) {starts = [2, 1], sizes = [2, 3], steps = [2, 2]} : float32[2, 3]
         %11 = slice(%8) {starts = [0, 0, 0], sizes = [2, 3, n], steps = [1, 1, 1]} : float32[2, 3, n]
         %12 = broadcast_to(%2) {shape = [4, 1]} : float32[4, 1]
         %13 = broadcast_to(%12) {shape = [5, 4, 7]} : float32[5, 4, 7]
         %14 = concat(%1) {axis = 0} : float32[9, 8]
         %15 = concat(%1, %14) {axis = 0} : float32[18, 8]
         %16 = concat(%15, %1) {axis = 0} : float32[27, 8]
         %17 = reduce(%2) {kind = \"max\", axis = 0} : float32[1]
         %18 = reduce(%2) {kind = \"sum\", axis = 0} : float32[1]
         return %7, %10, %11, %13, %16, %17, %18",
    );
    expect![[r#"
        graph "g"(%0: float32[2, 3, n], %1: float32[9, 8], %2: float32[1]) {
          %3 = reshape(%0) {shape = [n, 6]} : float32[n, 6]
          %4 = slice(%1) {starts = [3, 6], sizes = [2, 3], steps = [2, -2]} : float32[2, 3]
          %5 = broadcast_to(%2) {shape = [5, 4, 7]} : float32[5, 4, 7]
          %6 = concat(%1, %1, %1) {axis = 0} : float32[27, 8]
          %7 = reduce(%2) {kind = "sum", axis = 0} : float32[1]
          return %3, %4, %0, %5, %6, %2, %7
        }
    "#]]
    .assert_eq(&after("identities", &body));
}

#[test]
fn cse() {
    let body = graph(
        "%0: float32[n, 3], %1: float32[n, 3]",
        "%2 = f32 2.0
         %3 = f32 2.0
         %4 = f32 -2.0
         %5 = mul(%0, %2) : float32[n, 3]
         %6 = mul(%3, %0) : float32[n, 3]
         %7 = sub(%5, %1) : float32[n, 3]
         %8 = sub(%1, %6) : float32[n, 3]
         %9 = add(%7, %8) : float32[n, 3]
         %10 = add(%8, %7) : float32[n, 3]
         %11 = slice(%9) {starts = [1, 0], sizes = [m, 3], steps = [1, 1]} : float32[m, 3]
         %12 = slice(%10) {starts = [1, 0], sizes = [m, 3], steps = [1, 1]} : float32[m, 3]
         %13 = slice(%10) {starts = [2, 0], sizes = [m, 3], steps = [1, 1]} : float32[m, 3]
         print(%12) {label = \"a\"}
         print(%12) {label = \"a\"}
         %14 = mul(%12, %4) : float32[m, 3]
         return %11, %12, %13, %14",
    );
    expect![[r#"
        graph "g"(%0: float32[n, 3], %1: float32[n, 3]) {
          %2 = constant() {value = dense(float32[], [2.0]), device = "cpu:0"} : float32[]
          %3 = constant() {value = dense(float32[], [-2.0]), device = "cpu:0"} : float32[]
          %4 = mul(%0, %2) : float32[n, 3]
          %5 = sub(%4, %1) : float32[n, 3]
          %6 = sub(%1, %4) : float32[n, 3]
          %7 = add(%5, %6) : float32[n, 3]
          %8 = slice(%7) {starts = [1, 0], sizes = [m, 3], steps = [1, 1]} : float32[m, 3]
          %9 = slice(%7) {starts = [2, 0], sizes = [m, 3], steps = [1, 1]} : float32[m, 3]
          print(%8) {label = "a"}
          print(%8) {label = "a"}
          %10 = mul(%8, %3) : float32[m, 3]
          return %8, %8, %9, %10
        }
    "#]]
    .assert_eq(&after("cse", &body));
}

#[test]
fn dead_code() {
    let body = graph(
        "%0: float32[n, 4], %1: int64[], %2: float32[5]",
        "%3 = exp(%0) : float32[n, 4]
         %4 = log(%3) : float32[n, 4]
         %5 = rebind(%0) {shape = [7, 4], message = \"seven\", layout = \"\"} : float32[7, 4]
         %6 = slice(%0) {starts = [1, 0], sizes = [2, 4], steps = [1, 1]} : float32[2, 4]
         %7 = slice(%2) {starts = [1], sizes = [2], steps = [2]} : float32[2]
         %8 = slice(%2) {starts = [1], sizes = [3], steps = [2]} : float32[3]
         %9 = dynamic_slice(%2, %1) {axis = 0, step = 1, start = true, stop = false, out_dim = `m`} : float32[m]
         %10, %11 = split(%2) {sizes = [2, 3], axis = 0} : float32[2], float32[3]
         %12 = sqrt(%2) : float32[5]
         print(%12) {label = \"roots\"}
         return %0, %11",
    );
    expect![[r#"
        graph "g"(%0: float32[n, 4], %1: int64[], %2: float32[5]) {
          %3 = rebind(%0) {shape = [7, 4], message = "seven", layout = ""} : float32[7, 4]
          %4 = slice(%0) {starts = [1, 0], sizes = [2, 4], steps = [1, 1]} : float32[2, 4]
          %5 = slice(%2) {starts = [1], sizes = [3], steps = [2]} : float32[3]
          %6 = dynamic_slice(%2, %1) {axis = 0, step = 1, start = true, stop = false, out_dim = `m`} : float32[m]
          %7, %8 = split(%2) {sizes = [2, 3], axis = 0} : float32[2], float32[3]
          %9 = sqrt(%2) : float32[5]
          print(%9) {label = "roots"}
          return %0, %8
        }
    "#]].assert_eq(&after("dead_code", &body));
}

#[test]
fn merge_matmuls() {
    let body = graph(
        "%0: float32[n, 2], %1: float32[2, 2]",
        "%2 = constant() {value = dense(float32[2, 1], [1.0, 2.0]), device = \"cpu:0\"} : float32[2, 1]
         %3 = constant() {value = dense(float32[2, 2], [3.0, 4.0, 5.0, 6.0]), device = \"cpu:0\"} : float32[2, 2]
         %4 = constant() {value = dense(float32[2, 1], [7.0, 8.0]), device = \"cpu:0\"} : float32[2, 1]
         %5 = matmul(%0, %2) : float32[n, 1]
         %6 = softmax(%5) {axis = 0, log = false} : float32[n, 1]
         %7 = matmul(%0, %3) : float32[n, 2]
         %8 = matmul(%0, %1) : float32[n, 2]
         %9 = constant() {value = dense(float32[1, 2], [0.5, 0.25]), device = \"cpu:0\"} : float32[1, 2]
         %10 = add(%7, %9) : float32[n, 2]
         %11 = matmul(%10, %4) : float32[n, 1]
         return %6, %8, %11",
    );
    expect![[r#"
        graph "g"(%0: float32[n, 2], %1: float32[2, 2]) {
          %2 = constant() {value = dense(float32[2, 1], [7.0, 8.0]), device = "cpu:0"} : float32[2, 1]
          %3 = constant() {value = dense(float32[2, 3], [1.0, 3.0, 4.0, 2.0, 5.0, 6.0]), device = "cpu:0"} : float32[2, 3]
          %4 = matmul(%0, %3) : float32[n, 3]
          %5 = constant() {value = dense(float32[3], [-0.0, 0.5, 0.25]), device = "cpu:0"} : float32[3]
          %6 = add(%4, %5) : float32[n, 3]
          %7 = slice(%6) {starts = [0, 0], sizes = [n, 1], steps = [1, 1]} : float32[n, 1]
          %8 = slice(%6) {starts = [0, 1], sizes = [n, 2], steps = [1, 1]} : float32[n, 2]
          %9 = softmax(%7) {axis = 0, log = false} : float32[n, 1]
          %10 = matmul(%0, %1) : float32[n, 2]
          %11 = matmul(%8, %2) : float32[n, 1]
          return %9, %10, %11
        }
    "#]].assert_eq(&after("merge_matmuls", &body));
}

/// Elementwise ops join the kernels of two matmuls, and results have memory of their own.
#[test]
fn products_that_others_continue_stay_apart() {
    let products = |used: &str| {
        let body = graph(
            "%0: float32[n, 1]",
            &format!(
                "%1 = constant() {{value = dense(float32[1, 1], [1.0]), device = \"cpu:0\"}} : float32[1, 1]
                 %2 = constant() {{value = dense(float32[1, 1], [2.0]), device = \"cpu:0\"}} : float32[1, 1]
                 %3 = constant() {{value = dense(float32[1, 1], [3.0]), device = \"cpu:0\"}} : float32[1, 1]
                 %4 = matmul(%0, %1) : float32[n, 1]
                 %5 = matmul(%0, %2) : float32[n, 1]
                 {used}"
            ),
        );
        after("merge_matmuls", &body).matches("matmul").count()
    };
    assert_eq!(products("%6 = mul(%4, %5) : float32[n, 1]\nreturn %6"), 2);
    assert_eq!(products("%6 = reshape(%5) {shape = [n]} : float32[n]\nreturn %4, %6"), 2);
    assert_eq!(products("%6 = concat(%4, %5) {axis = 0} : float32[n * 2, 1]\nreturn %6"), 2);
    let sums = "%6 = transfer_to(%4) {device = \"gpu:0\"} : float32[n, 1]@gpu:0
         %7 = transfer_to(%5) {device = \"gpu:0\"} : float32[n, 1]@gpu:0
         %8 = reduce(%6) {kind = \"sum\", axis = 0} : float32[1, 1]@gpu:0
         %9 = reduce(%7) {kind = \"sum\", axis = 0} : float32[1, 1]@gpu:0
         return %8, %9";
    assert_eq!(products(sums), 2);
    let third = "%6 = matmul(%0, %3) : float32[n, 1]\n%7 = mul(%4, %5) : float32[n, 1]";
    assert_eq!(products(&format!("{third}\n%8 = mul(%7, %6) : float32[n, 1]\nreturn %8")), 1);
}

#[test]
fn parts_of_functions_of_positions() {
    let body = graph(
        "%0: float32[4], %1: int64[2, 3], %2: int64[], %3: int64[]",
        "%4 = index() {shape = [100000], device = \"cpu:0\"} : int64[100000]
         %5 = cast(%4) {dtype = \"float32\"} : float32[100000]
         %6 = reshape(%5) {shape = [100000, 1]} : float32[100000, 1]
         %7 = mul(%6, %0) : float32[100000, 4]
         %8 = cos(%7) : float32[100000, 4]
         %9 = reshape(%8) {shape = [100000, 4, 1]} : float32[100000, 4, 1]
         %10 = sin(%7) : float32[100000, 4]
         %11 = reshape(%10) {shape = [100000, 4, 1]} : float32[100000, 4, 1]
         %12 = concat(%9, %11) {axis = 2} : float32[100000, 4, 2]
         %13 = slice(%12) {starts = [7, 0, 0], sizes = [5, 4, 2], steps = [1, 1, 1]} : float32[5, 4, 2]
         %14 = dynamic_slice(%12, %2, %3) {axis = 0, step = 1, start = true, stop = true, out_dim = `m`} : float32[m, 4, 2]
         %15 = gather(%8, %1) {axis = 0} : float32[2, 3, 4]
         %16 = slice(%0) {starts = [1], sizes = [2], steps = [1]} : float32[2]
         return %13, %14, %15, %16",
    );
    expect![[r#"
        graph "g"(%0: float32[4], %1: int64[2, 3], %2: int64[], %3: int64[]) {
          %4 = index() {shape = [100000], device = "cpu:0"} : int64[100000]
          %5 = slice(%4) {starts = [7], sizes = [5], steps = [1]} : int64[5]
          %6 = cast(%5) {dtype = "float32"} : float32[5]
          %7 = reshape(%6) {shape = [5, 1]} : float32[5, 1]
          %8 = mul(%7, %0) : float32[5, 4]
          %9 = cos(%8) : float32[5, 4]
          %10 = reshape(%9) {shape = [5, 4, 1]} : float32[5, 4, 1]
          %11 = sin(%8) : float32[5, 4]
          %12 = reshape(%11) {shape = [5, 4, 1]} : float32[5, 4, 1]
          %13 = concat(%10, %12) {axis = 2} : float32[5, 4, 2]
          %14 = dynamic_slice(%4, %2, %3) {axis = 0, step = 1, start = true, stop = true, out_dim = `m`} : int64[m]
          %15 = cast(%14) {dtype = "float32"} : float32[m]
          %16 = reshape(%15) {shape = [m, 1]} : float32[m, 1]
          %17 = mul(%16, %0) : float32[m, 4]
          %18 = cos(%17) : float32[m, 4]
          %19 = reshape(%18) {shape = [m, 4, 1]} : float32[m, 4, 1]
          %20 = sin(%17) : float32[m, 4]
          %21 = reshape(%20) {shape = [m, 4, 1]} : float32[m, 4, 1]
          %22 = concat(%19, %21) {axis = 2} : float32[m, 4, 2]
          %23 = gather(%4, %1) {axis = 0} : int64[2, 3]
          %24 = cast(%23) {dtype = "float32"} : float32[2, 3]
          %25 = reshape(%24) {shape = [2, 3, 1]} : float32[2, 3, 1]
          %26 = mul(%25, %0) : float32[2, 3, 4]
          %27 = cos(%26) : float32[2, 3, 4]
          %28 = slice(%0) {starts = [1], sizes = [2], steps = [1]} : float32[2]
          return %13, %22, %27, %28
        }
    "#]].assert_eq(&after("positions", &body));
}
