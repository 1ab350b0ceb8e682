/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as a tokenizer.json; what is read encodes a text that has its added tokens and broken UTF-8. */
#include "fuzz_input.h"
#include "tools/tokenizer/tokenizer_state.h"

static void encode(const tokenizer *t, const char *text, size_t bytes) {
    token_list ids = { 0 };
    tokenizer_encoder *e = tokenizer_encoder_create(t);
    if (!e)
        abort();
    uint64_t before = tess__fail_count();
    tess_status s = tokenizer_encode_document(e, text, bytes, -1, &ids);
    fuzz_check(s != TESS_OK, before);
    for (size_t i = 0, n; i < ids.n; i++)
        if (ids.ids[i] < 0 || ids.ids[i] >= tokenizer_size(t) || !tokenizer_text(t, ids.ids[i], &n))
            abort(); /* a token that there is not */
    token_list_free(&ids);
    tokenizer_encoder_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] =
        " the ranks' \t\n\r\n 123a\xcc\x8a\xe4\xb8\xad\xf0\x9f\xff \xe3\x80\x80<|turn|>\n <|end|> user\n";
    tokenizer *t = calloc(1, sizeof *t);
    uint64_t before = tess__fail_count();
    tess_status s = tokenizer_read(fuzz_file(data, size), t);
    fuzz_check(s != TESS_OK, before);
    if (s == TESS_OK) {
        encode(t, text, sizeof text - 1);
        encode(t, (const char *)data, size < 4096 ? size : 4096);
    }
    tokenizer_close(t);
    return 0;
}
