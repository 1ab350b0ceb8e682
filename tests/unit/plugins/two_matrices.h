/* SPDX-License-Identifier: BSD-3-Clause */
/* The problem of tests/reference/make_muon.py and make_adamw8bit.py: two (one x) against a target. Included where HIGH,
 * WIDE and SAMPLES are known. */
#ifndef TESS_TWO_MATRICES_H
#define TESS_TWO_MATRICES_H
#include <stdint.h>

/* Numbers between -1 and 1, as the scripts make them. */
static float noise(uint64_t i, uint64_t seed) {
    return (float)((double)(uint32_t)((i + 1) * 2654435761u + seed * 40503u) / 2147483648.0 - 1);
}

/* `one` is HIGH x WIDE, `two` WIDE x HIGH. Returns the loss and leaves its gradients. */
static double loss_of(const float *one, const float *two, float *grad_one, float *grad_two) {
    static double x[WIDE][SAMPLES], hidden[HIGH][SAMPLES], error[WIDE][SAMPLES];
    double loss = 0;
    for (int s = 0; s < SAMPLES; s++)
        for (int h = 0; h < HIGH; h++) {
            hidden[h][s] = 0;
            for (int i = 0; i < WIDE; i++) {
                x[i][s] = (double)noise((uint64_t)(i * SAMPLES + s), 2);
                hidden[h][s] += (double)one[h * WIDE + i] * x[i][s];
            }
        }
    for (int s = 0; s < SAMPLES; s++)
        for (int i = 0; i < WIDE; i++) {
            error[i][s] = -(double)noise((uint64_t)(i * SAMPLES + s), 3);
            for (int h = 0; h < HIGH; h++)
                error[i][s] += (double)two[i * HIGH + h] * hidden[h][s];
            loss += error[i][s] * error[i][s] / (2 * WIDE * SAMPLES);
            error[i][s] /= WIDE * SAMPLES;
        }
    for (int h = 0; h < HIGH; h++)
        for (int i = 0; i < WIDE; i++) {
            double of_one = 0, of_two = 0;
            for (int s = 0; s < SAMPLES; s++) {
                double back = 0;
                for (int o = 0; o < WIDE; o++)
                    back += (double)two[o * HIGH + h] * error[o][s];
                of_one += back * x[i][s];
                of_two += error[i][s] * hidden[h][s];
            }
            grad_one[h * WIDE + i] = (float)of_one;
            grad_two[i * HIGH + h] = (float)of_two;
        }
    return loss;
}
#endif
