/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables describe each family of decoders in Hugging Face folders: the members of config.json and the names of tensors.
 * hf_fields.h reads and writes configs by them, hf_names.h names tensors, and plans of folders know members. */
#ifndef TOOL_HF_FAMILY_H
#define TOOL_HF_FAMILY_H
#include <stddef.h>
#include <stdint.h>

/* ---- config.json ------------------------------------------------------------------------------------ */
enum { /* settings, each a number; 0: the model's default, or it has none */
       HF_NONE,
       HF_LAYERS,
       HF_HEADS,
       HF_KV_HEADS,
       HF_HEAD_SIZE,
       HF_WIDTH,
       HF_FEED,
       HF_VOCABULARY,
       HF_POSITIONS,      /* the context that the model is made for */
       HF_POSITION_TABLE, /* the same, of a model that has a table of them */
       HF_EPS,
       HF_TIED,
       HF_DROPOUT,
       HF_ATTENTION_DROPOUT,
       HF_ROPE_THETA,
       HF_ROPE_FACTOR,
       HF_ROPE_LOW,
       HF_ROPE_HIGH,
       HF_ROPE_POSITIONS,
       HF_ROPE_FAST, /* above 0: YaRN */
       HF_ROPE_SLOW,
       HF_ROPE_WHOLE,
       HF_ROPE_ATTENTION, /* 0: it follows from the factor, or from the next two */
       HF_ROPE_MSCALE,
       HF_ROPE_MSCALE_ALL,
       HF_ROPE_LOCAL_THETA, /* for layers with a window */
       HF_WINDOW_USED,
       HF_WINDOW,
       HF_WINDOW_FROM,  /* the first layer that has it */
       HF_WINDOW_EVERY, /* every so manieth layer has none */
       HF_QUERY_SCALAR, /* scores are divided by its root */
       HF_ATTENTION_CAP,
       HF_LOGIT_CAP,
       HF_SETTINGS
};
enum {           /* kinds of members; null is as if the member were absent */
       HF_WHOLE, /* from 1 to 2^24 */
       HF_COUNT, /* from 0 */
       HF_REAL,  /* positive */
       HF_RATE,  /* from 0, below 1 */
       HF_BOOL,
       /* These support one value alone: */
       HF_TEXT, /* `text` */
       HF_TRUE,
       HF_FALSE,
       HF_ONE,
       HF_EMPTY,       /* an object without members */
       HF_ROPE,        /* an object of rope_fields, a type, and that type's fields */
       HF_OBJECT,      /* an object of the fields `inner` */
       HF_LAYER_TYPES, /* "sliding_attention" or "full_attention" for each layer, as `from` and `every` can say it */
       HF_IGNORED
};
typedef struct hf_field {
    const char *key;
    int32_t kind, setting;
    double fallback;      /* the setting where the member is absent, times the setting `of`, if that is not HF_NONE */
    int32_t of, required; /* required: it must not be absent */
    int32_t same, above;  /* it must equal this setting, or exceed it; `text` is the message if not */
    const char *text;
    int32_t read_only; /* not written; nor are those from HF_TRUE to HF_EMPTY */
    int32_t none;      /* null is 0, and not as if it were absent */
    int32_t only;      /* it is 0 if this setting is 0 */
    const struct hf_field *inner;
} hf_field;
typedef struct {
    const char *type;
    const hf_field *fields; /* end with a null key */
} hf_rope;

/* ---- tensors ---------------------------------------------------------------------------------------- */
enum { HF_TURNED = 1 /* matrices stored as [inputs, outputs] */, HF_HEAD = 2 /* none, where the head is tied */ };
typedef struct {
    const char *ours, *theirs; /* the beginning of a name */
    int32_t flags;
} hf_tensor;

/* Members of a file that no table has are passed over. */
typedef struct {
    const char *model, *architecture; /* model: its name here */
    const char *type;                 /* model_type; null: that name */
    const char *prefix;               /* prefix of tensor names, which some files omit */
    const hf_field *fields;           /* end with a null key; in the order in which they are read and written */
    const hf_tensor *tensors;         /* end with null names */
    int32_t layer_norm;               /* normalises by mean and variance */
} hf_family;

extern const hf_family hf_families[];   /* end with a null model */
extern const hf_field hf_any_fields[];  /* fields of every family, read first */
extern const hf_field hf_rope_fields[]; /* fields of every rope type */
extern const hf_rope hf_ropes[];        /* the default first; end with a null type */

/** Null: folders of this model are not known. */
const hf_family *hf_family_find(const char *model);
const hf_family *hf_family_of_type(const char *type);
const char *hf_family_type(const hf_family *);
/** The families' models, or model_types, as "gpt2 or llama" for the word "or". */
const char *hf_family_names(int types, const char *word, char out[128]);
/** The member of some family's config.json; null: none has it. *family: one that has it, without LayerNorm if there is
 * one. */
const hf_field *hf_family_field(const char *key, const hf_family **family);
#endif
