//! Which named ops patterns become.

use expect_test::expect;

use super::{OPTIONS, after, after_all, graph, optimize};

#[test]
fn softmax() {
    let body = graph(
        "%0: float32[n, m]",
        "%1 = reduce(%0) {kind = \"max\", axis = 0} : float32[1, m]
         %2 = sub(%0, %1) : float32[n, m]
         %3 = exp(%2) : float32[n, m]
         %4 = reduce(%3) {kind = \"sum\", axis = 0} : float32[1, m]
         %5 = div(%3, %4) : float32[n, m]
         %6 = reduce(%5) {kind = \"max\", axis = 1} : float32[n, 1]
         %7 = sub(%5, %6) : float32[n, m]
         %8 = exp(%7) : float32[n, m]
         %9 = reduce(%8) {kind = \"sum\", axis = 1} : float32[n, 1]
         %10 = log(%9) : float32[n, 1]
         %11 = sub(%7, %10) : float32[n, m]
         return %11",
    );
    expect![[r#"
        graph "g"(%0: float32[n, m]) {
          %1 = softmax(%0) {axis = 0, log = false} : float32[n, m]
          %2 = softmax(%1) {axis = 1, log = true} : float32[n, m]
          return %2
        }
    "#]]
    .assert_eq(&after("recognize", &body));
}

#[test]
fn parts_that_are_used_elsewhere_stay() {
    let body = graph(
        "%0: float32[n, m]",
        "%1 = reduce(%0) {kind = \"max\", axis = 1} : float32[n, 1]
         %2 = sub(%0, %1) : float32[n, m]
         %3 = exp(%2) : float32[n, m]
         %4 = reduce(%3) {kind = \"sum\", axis = 1} : float32[n, 1]
         %5 = div(%3, %4) : float32[n, m]
         %6 = reduce(%0) {kind = \"max\", axis = 0} : float32[1, m]
         %7 = sub(%0, %6) : float32[n, m]
         %8 = exp(%7) : float32[n, m]
         %9 = reduce(%8) {kind = \"sum\", axis = 1} : float32[n, 1]
         %10 = div(%8, %9) : float32[n, m]
         return %3, %5, %10",
    );
    assert!(!after_all(&body).contains("softmax"));
}

#[test]
fn activations() {
    let body = graph(
        "%0: float32[n], %1: float32[n], %2: float32[n], %3: float32[n], %4: float32[n]",
        "%10 = f32 1.0
         %11 = negate(%0) : float32[n]
         %12 = exp(%11) : float32[n]
         %13 = add(%10, %12) : float32[n]
         %14 = div(%10, %13) : float32[n]
         %15 = mul(%14, %0) : float32[n]
         %16 = f32 1.4142135
         %17 = div(%1, %16) : float32[n]
         %18 = erf(%17) : float32[n]
         %19 = add(%18, %10) : float32[n]
         %20 = mul(%1, %19) : float32[n]
         %21 = f32 2.0
         %22 = div(%20, %21) : float32[n]
         %30 = f32 3.0
         %31 = pow(%2, %30) : float32[n]
         %32 = f32 0.044715
         %33 = mul(%32, %31) : float32[n]
         %34 = add(%2, %33) : float32[n]
         %35 = f32 0.7978846
         %36 = mul(%34, %35) : float32[n]
         %37 = tanh(%36) : float32[n]
         %38 = add(%10, %37) : float32[n]
         %39 = f32 0.5
         %40 = mul(%39, %2) : float32[n]
         %41 = mul(%40, %38) : float32[n]
         %50 = f32 1.702
         %51 = mul(%3, %50) : float32[n]
         %52 = sigmoid(%51) : float32[n]
         %53 = mul(%3, %52) : float32[n]
         %60 = f32 0.0
         %61 = max(%4, %60) : float32[n]
         %62 = max(%60, %4) : float32[n]
         %63 = pow(%61, %21) : float32[n]
         %64 = sqrt(%63) : float32[n]
         %65 = div(%10, %64) : float32[n]
         return %15, %22, %41, %53, %62, %65",
    );
    expect![[r#"
        graph "g"(%0: float32[n], %1: float32[n], %2: float32[n], %3: float32[n], %4: float32[n]) {
          %5 = silu(%0) : float32[n]
          %6 = gelu(%1) : float32[n]
          %7 = gelu_tanh(%2) : float32[n]
          %8 = gelu_quick(%3) : float32[n]
          %9 = constant() {value = dense(float32[], [0.0]), device = "cpu:0"} : float32[]
          %10 = relu(%4) : float32[n]
          %11 = max(%9, %4) : float32[n]
          %12 = mul(%10, %10) : float32[n]
          %13 = rsqrt(%12) : float32[n]
          return %5, %6, %7, %8, %11, %13
        }
    "#]]
    .assert_eq(&after_all(&body));
}

#[test]
fn layer_norm() {
    let body = graph(
        "%0: float32[n, 8], %1: float32[8], %2: float32[8], %3: float32[n, 8]",
        "%4 = reduce(%0) {kind = \"mean\", axis = 1} : float32[n, 1]
         %5 = sub(%0, %4) : float32[n, 8]
         %6 = f32 2.0
         %7 = pow(%5, %6) : float32[n, 8]
         %8 = reduce(%7) {kind = \"mean\", axis = 1} : float32[n, 1]
         %9 = f32 1e-05
         %10 = add(%8, %9) : float32[n, 1]
         %11 = sqrt(%10) : float32[n, 1]
         %12 = div(%5, %11) : float32[n, 8]
         %13 = mul(%1, %12) : float32[n, 8]
         %14 = add(%13, %2) : float32[n, 8]
         %20 = reduce(%3) {kind = \"sum\", axis = 1} : float32[n, 1]
         %21 = f32 8.0
         %22 = div(%20, %21) : float32[n, 1]
         %23 = sub(%3, %22) : float32[n, 8]
         %24 = mul(%23, %23) : float32[n, 8]
         %25 = reduce(%24) {kind = \"mean\", axis = 1} : float32[n, 1]
         %26 = add(%25, %9) : float32[n, 1]
         %27 = rsqrt(%26) : float32[n, 1]
         %28 = mul(%23, %27) : float32[n, 8]
         return %14, %28",
    );
    expect![[r#"
        graph "g"(%0: float32[n, 8], %1: float32[8], %2: float32[8], %3: float32[n, 8]) {
          %4 = layer_norm(%0, %1, %2) {epsilon = 9.999999747378752e-6} : float32[n, 8]
          %5 = constant() {value = dense(float32[], [1.0]), device = "cpu:0"} : float32[]
          %6 = broadcast_to(%5) {shape = [8]} : float32[8]
          %7 = constant() {value = dense(float32[], [-0.0]), device = "cpu:0"} : float32[]
          %8 = broadcast_to(%7) {shape = [8]} : float32[8]
          %9 = layer_norm(%3, %6, %8) {epsilon = 9.999999747378752e-6} : float32[n, 8]
          return %4, %9
        }
    "#]]
    .assert_eq(&after_all(&body));
}

#[test]
fn layer_norm_of_narrow_floats() {
    let body = graph(
        "%0: float16[n, 8], %1: float16[8], %2: float16[8]",
        "%4 = reduce(%0) {kind = \"mean\", axis = 1} : float16[n, 1]
         %5 = sub(%0, %4) : float16[n, 8]
         %6 = cast(%0) {dtype = \"float32\"} : float32[n, 8]
         %7 = reduce(%6) {kind = \"mean\", axis = 1} : float32[n, 1]
         %8 = sub(%6, %7) : float32[n, 8]
         %9 = mul(%8, %8) : float32[n, 8]
         %10 = reduce(%9) {kind = \"mean\", axis = 1} : float32[n, 1]
         %11 = cast(%10) {dtype = \"float16\"} : float16[n, 1]
         %12 = f16 0.001
         %13 = add(%11, %12) : float16[n, 1]
         %14 = sqrt(%13) : float16[n, 1]
         %15 = div(%5, %14) : float16[n, 8]
         %16 = mul(%15, %1) : float16[n, 8]
         %20 = cast(%16) {dtype = \"float32\"} : float32[n, 8]
         %21 = reduce(%20) {kind = \"mean\", axis = 1} : float32[n, 1]
         %22 = sub(%20, %21) : float32[n, 8]
         %23 = mul(%22, %22) : float32[n, 8]
         %24 = reduce(%23) {kind = \"mean\", axis = 1} : float32[n, 1]
         %25 = f32 0.001
         %26 = add(%24, %25) : float32[n, 1]
         %27 = rsqrt(%26) : float32[n, 1]
         %28 = mul(%22, %27) : float32[n, 8]
         %29 = cast(%1) {dtype = \"float32\"} : float32[8]
         %30 = mul(%28, %29) : float32[n, 8]
         %31 = cast(%2) {dtype = \"float32\"} : float32[8]
         %32 = add(%30, %31) : float32[n, 8]
         %33 = cast(%32) {dtype = \"float16\"} : float16[n, 8]
         return %33",
    );
    expect![[r#"
        graph "g"(%0: float16[n, 8], %1: float16[8], %2: float16[8]) {
          %3 = constant() {value = dense(float16[], [-0.0]), device = "cpu:0"} : float16[]
          %4 = broadcast_to(%3) {shape = [8]} : float16[8]
          %5 = layer_norm(%0, %1, %4) {epsilon = 0.0010004043579101563} : float16[n, 8]
          %6 = layer_norm(%5, %1, %2) {epsilon = 0.0010000000474974513} : float16[n, 8]
          return %6
        }
    "#]]
    .assert_eq(&after_all(&body));
}

#[test]
fn rms_norm() {
    let body = graph(
        "%0: float16[n, 8], %1: float16[8], %2: float32[n, 8], %3: float32[8]",
        "%4 = cast(%0) {dtype = \"float32\"} : float32[n, 8]
         %5 = mul(%4, %4) : float32[n, 8]
         %6 = reduce(%5) {kind = \"mean\", axis = 1} : float32[n, 1]
         %7 = f32 1e-06
         %8 = add(%6, %7) : float32[n, 1]
         %9 = rsqrt(%8) : float32[n, 1]
         %10 = mul(%4, %9) : float32[n, 8]
         %11 = cast(%10) {dtype = \"float16\"} : float16[n, 8]
         %12 = mul(%1, %11) : float16[n, 8]
         %20 = f32 1.0
         %21 = mul(%2, %2) : float32[n, 8]
         %22 = reduce(%21) {kind = \"mean\", axis = 1} : float32[n, 1]
         %23 = add(%22, %7) : float32[n, 1]
         %24 = sqrt(%23) : float32[n, 1]
         %25 = div(%2, %24) : float32[n, 8]
         %26 = add(%20, %3) : float32[8]
         %27 = mul(%25, %26) : float32[n, 8]
         %30 = cast(%12) {dtype = \"float32\"} : float32[n, 8]
         %31 = mul(%30, %30) : float32[n, 8]
         %32 = reduce(%31) {kind = \"mean\", axis = 1} : float32[n, 1]
         %33 = add(%32, %7) : float32[n, 1]
         %34 = rsqrt(%33) : float32[n, 1]
         %35 = mul(%30, %34) : float32[n, 8]
         %36 = cast(%1) {dtype = \"float32\"} : float32[8]
         %37 = add(%36, %20) : float32[8]
         %38 = mul(%35, %37) : float32[n, 8]
         %39 = cast(%38) {dtype = \"float16\"} : float16[n, 8]
         return %27, %39",
    );
    expect![[r#"
        graph "g"(%0: float16[n, 8], %1: float16[8], %2: float32[n, 8], %3: float32[8]) {
          %4 = rms_norm(%0, %1) {epsilon = 9.999999974752427e-7, weight_offset = 0.0, multiply_before_cast = false} : float16[n, 8]
          %5 = rms_norm(%2, %3) {epsilon = 9.999999974752427e-7, weight_offset = 1.0, multiply_before_cast = false} : float32[n, 8]
          %6 = rms_norm(%4, %1) {epsilon = 9.999999974752427e-7, weight_offset = 1.0, multiply_before_cast = true} : float16[n, 8]
          return %5, %6
        }
    "#]].assert_eq(&after_all(&body));
}

const HEADS: &str = "%0: float32[b, s, 2, 4], %1: float32[b, s, 2, 4], %2: float32[b, s, 2, 4], %3: float32[s, s], \
                     %4: bool[s, s]";

#[test]
fn attention_with_heads_and_a_mask_to_add() {
    let body = graph(
        HEADS,
        "%10 = permute(%0) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
         %11 = permute(%1) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
         %12 = permute(%2) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
         %13 = permute(%11) {dims = [0, 1, 3, 2]} : float32[b, 2, 4, s]
         %14 = matmul(%10, %13) : float32[b, 2, s, s]
         %15 = f32 0.5
         %16 = mul(%15, %14) : float32[b, 2, s, s]
         %17 = add(%3, %16) : float32[b, 2, s, s]
         %18 = softmax(%17) {axis = 3, log = false} : float32[b, 2, s, s]
         %19 = matmul(%18, %12) : float32[b, 2, s, 4]
         return %19",
    );
    expect![[r#"
        graph "g"(%0: float32[b, s, 2, 4], %1: float32[b, s, 2, 4], %2: float32[b, s, 2, 4], %3: float32[s, s], %4: bool[s, s]) {
          %5 = permute(%0) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
          %6 = permute(%2) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
          %7 = permute(%1) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
          %8 = attention(%5, %7, %6, %3) {scale = 0.5, causal = false, window = 0} : float32[b, 2, s, 4]
          return %8
        }
    "#]].assert_eq(&after_all(&body));
}

#[test]
fn attention_with_a_mask_to_hide_and_a_scaled_query() {
    let body = graph(
        HEADS,
        "%13 = permute(%1) {dims = [0, 1, 3, 2]} : float32[b, s, 4, 2]
         %14 = f32 2.0
         %15 = div(%0, %14) : float32[b, s, 2, 4]
         %16 = matmul(%15, %13) : float32[b, s, 2, 2]
         %17 = constant() {value = dense(bool[2, 2], [1, 0, 0, 1]), device = \"cpu:0\"} : bool[2, 2]
         %18 = f32 -inf
         %19 = where(%17, %18, %16) : float32[b, s, 2, 2]
         %20 = softmax(%19) {axis = 3, log = false} : float32[b, s, 2, 2]
         %21 = matmul(%20, %2) : float32[b, s, 2, 4]
         return %21",
    );
    expect![[r#"
        graph "g"(%0: float32[b, s, 2, 4], %1: float32[b, s, 2, 4], %2: float32[b, s, 2, 4], %3: float32[s, s], %4: bool[s, s]) {
          %5 = constant() {value = dense(bool[2, 2], [1, 0, 0, 1]), device = "cpu:0"} : bool[2, 2]
          %6 = logical_not(%5) : bool[2, 2]
          %7 = attention(%0, %1, %2, %6) {scale = 0.5, causal = false, window = 0} : float32[b, s, 2, 4]
          return %7
        }
    "#]].assert_eq(&after_all(&body));
}

/// Attention over three queries and keys with a constant mask.
fn with_mask(mask: &str, combine: &str) -> String {
    let body = graph(
        "%0: float32[3, 4], %1: float32[3, 4], %2: float32[3, 5]",
        &format!(
            "%3 = constant() {{value = dense({mask}), device = \"cpu:0\"}} : {}
             %4 = permute(%1) {{dims = [1, 0]}} : float32[4, 3]
             %5 = matmul(%0, %4) : float32[3, 3]
             %6 = f32 -inf
             %7 = {combine} : float32[3, 3]
             %8 = softmax(%7) {{axis = 1, log = false}} : float32[3, 3]
             %9 = matmul(%8, %2) : float32[3, 5]
             return %9",
            &mask[..=mask.find(']').unwrap()],
        ),
    );
    after_all(&body)
}

#[test]
fn triangular_masks_are_causal() {
    let causal = with_mask("bool[3, 3], [1, 0, 0, 1, 1, 0, 1, 1, 1]", "where(%3, %5, %6)");
    expect![[r#"
        graph "g"(%0: float32[3, 4], %1: float32[3, 4], %2: float32[3, 5]) {
          %3 = attention(%0, %1, %2) {scale = 1.0, causal = true, window = 0} : float32[3, 5]
          return %3
        }
    "#]]
    .assert_eq(&causal);
    let added = "float32[3, 3], [0.0, -inf, -inf, 0.0, 0.0, -inf, 0.0, 0.0, 0.0]";
    assert_eq!(with_mask(added, "add(%5, %3)"), causal);
    assert_eq!(with_mask("bool[3, 3], [0, 1, 1, 0, 0, 1, 0, 0, 0]", "where(%3, %6, %5)"), causal);
    for mask in [
        "bool[3, 3], [1, 0, 0, 1, 1, 0, 1, 0, 1]",
        "bool[3, 3], [1, 1, 1, 0, 1, 1, 0, 0, 1]",
        "bool[3], [1, 0, 0]",
    ] {
        let masked = with_mask(mask, "where(%3, %5, %6)");
        assert!(masked.contains("attention") && !masked.contains("causal = true"), "{masked}");
    }
}

#[test]
fn bands_are_windows() {
    let band = with_mask("bool[3, 3], [1, 0, 0, 1, 1, 0, 0, 1, 1]", "where(%3, %5, %6)");
    expect![[r#"
        graph "g"(%0: float32[3, 4], %1: float32[3, 4], %2: float32[3, 5]) {
          %3 = attention(%0, %1, %2) {scale = 1.0, causal = true, window = 2} : float32[3, 5]
          return %3
        }
    "#]]
    .assert_eq(&band);
    let added = "float32[3, 3], [0.0, -inf, -inf, 0.0, 0.0, -inf, -inf, 0.0, 0.0]";
    assert_eq!(with_mask(added, "add(%5, %3)"), band);
    assert_eq!(with_mask("bool[3, 3], [0, 1, 1, 0, 0, 1, 1, 0, 0]", "where(%3, %6, %5)"), band);
    for mask in [
        "bool[3, 3], [1, 0, 0, 0, 1, 0, 0, 1, 1]",
        "bool[3, 3], [0, 0, 0, 1, 0, 0, 1, 1, 0]",
        "bool[3, 3], [1, 1, 0, 1, 1, 1, 0, 1, 1]",
    ] {
        let masked = with_mask(mask, "where(%3, %5, %6)");
        assert!(masked.contains("attention") && masked.contains("causal = false"), "{masked}");
    }
}

/// Attention with eight heads, four per head of keys and values.
fn grouped(repeat_key: &str, repeat_value: &str) -> String {
    let body = graph(
        "%0: float32[b, 8, q, 4], %1: float32[b, 2, s, 4], %2: float32[b, s, 2, 4], %3: bool[b, 1, q, s]",
        &format!(
            "{repeat_key}
             {repeat_value}
             %30 = permute(%19) {{dims = [0, 1, 3, 2]}} : float32[b, 8, 4, s]
             %31 = matmul(%0, %30) : float32[b, 8, q, s]
             %32 = f32 0.5
             %33 = mul(%31, %32) : float32[b, 8, q, s]
             %34 = f32 -inf
             %35 = where(%3, %33, %34) : float32[b, 8, q, s]
             %36 = softmax(%35) {{axis = 3, log = false}} : float32[b, 8, q, s]
             %37 = matmul(%36, %29) : float32[b, 8, q, 4]
             return %37"
        ),
    );
    after_all(&body)
}

#[test]
fn repeated_keys_and_values_are_shared_by_groups_of_heads() {
    let key = "%17 = reshape(%1) {shape = [b, 2, 1, s, 4]} : float32[b, 2, 1, s, 4]
               %18 = broadcast_to(%17) {shape = [b, 2, 4, s, 4]} : float32[b, 2, 4, s, 4]
               %19 = reshape(%18) {shape = [b, 8, s, 4]} : float32[b, 8, s, 4]";
    // Repeated before the heads are moved to the front.
    let value = "%26 = reshape(%2) {shape = [b, s, 2, 1, 4]} : float32[b, s, 2, 1, 4]
                 %27 = broadcast_to(%26) {shape = [b, s, 2, 4, 4]} : float32[b, s, 2, 4, 4]
                 %28 = reshape(%27) {shape = [b, s, 8, 4]} : float32[b, s, 8, 4]
                 %29 = permute(%28) {dims = [0, 2, 1, 3]} : float32[b, 8, s, 4]";
    expect![[r#"
        graph "g"(%0: float32[b, 8, q, 4], %1: float32[b, 2, s, 4], %2: float32[b, s, 2, 4], %3: bool[b, 1, q, s]) {
          %4 = reshape(%1) {shape = [b, 2, 1, s, 4]} : float32[b, 2, 1, s, 4]
          %5 = reshape(%2) {shape = [b, s, 2, 1, 4]} : float32[b, s, 2, 1, 4]
          %6 = reshape(%0) {shape = [b, 2, 4, q, 4]} : float32[b, 2, 4, q, 4]
          %7 = reshape(%3) {shape = [b, 1, 1, q, s]} : bool[b, 1, 1, q, s]
          %8 = permute(%5) {dims = [0, 2, 3, 1, 4]} : float32[b, 2, 1, s, 4]
          %9 = attention(%6, %4, %8, %7) {scale = 0.5, causal = false, window = 0} : float32[b, 2, 4, q, 4]
          %10 = reshape(%9) {shape = [b, 8, q, 4]} : float32[b, 8, q, 4]
          return %10
        }
    "#]].assert_eq(&grouped(key, value));

    let tiled = "%26 = reshape(%2) {shape = [b, s, 1, 2, 4]} : float32[b, s, 1, 2, 4]
                 %27 = broadcast_to(%26) {shape = [b, s, 4, 2, 4]} : float32[b, s, 4, 2, 4]
                 %28 = reshape(%27) {shape = [b, s, 8, 4]} : float32[b, s, 8, 4]
                 %29 = permute(%28) {dims = [0, 2, 1, 3]} : float32[b, 8, s, 4]";
    let apart = grouped(key, tiled);
    assert!(apart.contains("attention") && apart.contains("float32[b, 8, q, 4]\n  return"), "{apart}");
}

#[test]
fn attention_in_a_wider_dtype() {
    let body = graph(
        "%0: float16[s, 4], %1: float16[s, 4], %2: float16[s, 4]",
        "%3 = permute(%1) {dims = [1, 0]} : float16[4, s]
         %4 = matmul(%0, %3) : float16[s, s]
         %5 = cast(%4) {dtype = \"float32\"} : float32[s, s]
         %6 = softmax(%5) {axis = 1, log = false} : float32[s, s]
         %7 = cast(%6) {dtype = \"float16\"} : float16[s, s]
         %8 = matmul(%7, %2) : float16[s, 4]
         return %8",
    );
    expect![[r#"
        graph "g"(%0: float16[s, 4], %1: float16[s, 4], %2: float16[s, 4]) {
          %3 = attention(%0, %1, %2) {scale = 1.0, causal = false, window = 0} : float16[s, 4]
          return %3
        }
    "#]]
    .assert_eq(&after_all(&body));
}

#[test]
fn attention_with_scaled_queries_and_keys() {
    let body = graph(
        "%0: float32[q, 4], %1: float32[k, 4], %2: float32[k, 5]",
        "%3 = f32 0.5
         %4 = mul(%0, %3) : float32[q, 4]
         %5 = mul(%1, %3) : float32[k, 4]
         %6 = permute(%5) {dims = [1, 0]} : float32[4, k]
         %7 = matmul(%4, %6) : float32[q, k]
         %8 = softmax(%7) {axis = 1, log = false} : float32[q, k]
         %9 = matmul(%8, %2) : float32[q, 5]
         return %9",
    );
    expect![[r#"
        graph "g"(%0: float32[q, 4], %1: float32[k, 4], %2: float32[k, 5]) {
          %3 = attention(%0, %1, %2) {scale = 0.25, causal = false, window = 0} : float32[q, 5]
          return %3
        }
    "#]]
    .assert_eq(&after_all(&body));
}

#[test]
fn what_is_not_attention_stays() {
    let ops = |axis: &str, results: &str| {
        format!(
            "%3 = permute(%1) {{dims = [1, 0]}} : float32[4, s]
             %4 = matmul(%0, %3) : float32[s, s]
             %5 = softmax(%4) {{axis = {axis}, log = false}} : float32[s, s]
             %6 = matmul(%5, %2) : float32[s, 5]
             return {results}"
        )
    };
    let arguments = "%0: float32[s, 4], %1: float32[s, 4], %2: float32[s, 5]";
    assert!(after_all(&graph(arguments, &ops("1", "%6"))).contains("attention"));
    for (axis, results) in [("0", "%6"), ("1", "%5, %6"), ("1", "%4, %6")] {
        assert!(!after_all(&graph(arguments, &ops(axis, results))).contains("attention"), "{axis} {results}");
    }
}

#[test]
fn rewrites_that_round_differently_are_noted() {
    let rewrites = |ops: &str| {
        let body = graph("%0: float32[4, 4], %1: float16[4]", ops);
        optimize(body, OPTIONS, &mut |_, _| {}).unwrap().1
    };
    let exact = "%2 = f32 0.0
         %3 = f32 1.0
         %4 = max(%0, %2) : float32[4, 4]
         %5 = sqrt(%4) : float32[4, 4]
         %6 = div(%3, %5) : float32[4, 4]
         return %6";
    assert_eq!(rewrites(exact), [""; 0]);
    // A root of narrow floats is rounded before it is inverted.
    let narrow = "%3 = f16 1.0
         %5 = sqrt(%1) : float16[4]
         %6 = div(%3, %5) : float16[4]
         return %6";
    assert_eq!(rewrites(narrow), ["rsqrt"]);
    let both = "%2 = f32 1.0
         %3 = negate(%0) : float32[4, 4]
         %4 = exp(%3) : float32[4, 4]
         %5 = add(%2, %4) : float32[4, 4]
         %6 = div(%2, %5) : float32[4, 4]
         %7 = mul(%0, %6) : float32[4, 4]
         %8 = permute(%0) {dims = [1, 0]} : float32[4, 4]
         %9 = matmul(%7, %8) : float32[4, 4]
         %10 = softmax(%9) {axis = 1, log = false} : float32[4, 4]
         %11 = matmul(%10, %0) : float32[4, 4]
         return %11";
    assert_eq!(rewrites(both), ["sigmoid", "silu", "attention"]);
}
