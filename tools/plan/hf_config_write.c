/* SPDX-License-Identifier: BSD-3-Clause */
/* A model's config.json: what it was loaded with, else what it was made of. No spaces, so that it is one word. */
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "hf_config.h"
#include "tools/support/hf_import.h"
#include "tools/support/json_out.h"

/* ---- from options --------------------------------------------------------------------------------------- */
static void put_common(json_out *j, const model *m, const char *architecture) {
    json_array_begin(j, "architectures");
    json_string(j, NULL, architecture);
    json_array_end(j);
    json_string(j, "model_type", m->t->name);
    json_int(j, "vocab_size", m->desc.params[0].shape[0]);
    json_bool(j, "tie_word_embeddings", !m->options.untied);
}

static double eps_of(const model *m) {
    return m->options.decoder.norm_eps > 0 ? (double)m->options.decoder.norm_eps : 1e-5;
}

static void put_gpt2(json_out *j, const model *m) {
    const model_options *o = &m->options;
    static const char *const rates[] = { "resid_pdrop", "embd_pdrop", "attn_pdrop" };
    put_common(j, m, "GPT2LMHeadModel");
    json_string(j, "activation_function", "gelu_new");
    json_int(j, "n_layer", o->layers);
    json_int(j, "n_head", o->heads);
    json_int(j, "n_embd", o->width);
    json_int(j, "n_inner", o->decoder.feed ? o->decoder.feed : 4 * o->width);
    json_int(j, "n_positions", o->decoder.positions ? o->decoder.positions : o->context);
    json_double(j, "layer_norm_epsilon", eps_of(m));
    for (int i = 0; i < 3; i++)
        json_int(j, rates[i], 0);
    json_null(j, "bos_token_id");
    json_null(j, "eos_token_id");
}

static void put_llama(json_out *j, const model *m) {
    const model_options *o = &m->options;
    double theta = o->decoder.rope_theta > 0 ? o->decoder.rope_theta : 10000;
    put_common(j, m, "LlamaForCausalLM");
    json_string(j, "hidden_act", "silu");
    json_int(j, "num_hidden_layers", o->layers);
    json_int(j, "num_attention_heads", o->heads);
    json_int(j, "num_key_value_heads", o->decoder.kv_heads ? o->decoder.kv_heads : o->heads);
    json_int(j, "head_dim", o->decoder.head_size ? o->decoder.head_size : o->width / o->heads);
    json_int(j, "hidden_size", o->width);
    json_int(j, "intermediate_size", o->decoder.feed ? o->decoder.feed : 4 * o->width);
    json_int(j, "max_position_embeddings", o->context);
    json_double(j, "rms_norm_eps", eps_of(m));
    json_double(j, "rope_theta", theta);
    json_object_begin(j, "rope_parameters");
    json_string(j, "rope_type", "default");
    json_double(j, "rope_theta", theta);
    json_object_end(j);
    json_null(j, "bos_token_id");
    json_null(j, "eos_token_id");
}

/* ---- either --------------------------------------------------------------------------------------------- */
static tess_status put(FILE *f, const model *m, const char *source) {
    char *text = NULL;
    size_t bytes = 0;
    if (!source) {
        json_out j;
        json_init(&j, f);
        json_object_begin(&j, NULL);
        (strcmp(m->t->name, "llama") == 0 ? put_llama : put_gpt2)(&j, m);
        json_object_end(&j);
        return TESS_OK;
    }
    tess_status status = hf_config_text(source, &text, &bytes);
    json_in s = { .text = text, .bytes = bytes };
    if (status == TESS_OK && !hf_compact(&s, f))
        status = tess_fail(TESS_E_DATA, "%s: offset %zu: expected %s", source, s.at, s.expected);
    free(text);
    return status;
}

tess_status hf_config_make(const model *m, const char *source, char **out) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    tess_status status = f ? put(f, m, source) : tess_fail(TESS_E_NOMEM, "no memory for config.json");
    if (f && fclose(f) != 0 && status == TESS_OK)
        status = tess_fail(TESS_E_NOMEM, "no memory for config.json");
    if (status == TESS_OK)
        *out = text;
    else
        free(text);
    return status;
}
