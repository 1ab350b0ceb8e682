/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables describe each family of decoders in Hugging Face folders: the members of config.json and the names of tensors.
 * hf_fields.h reads and writes configs by them, and hf_names.h names tensors. */
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
       HF_POSITIONS,      /* the model's longest context */
       HF_POSITION_TABLE, /* the same for a model with a table of positions */
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
       HF_ROPE_ATTENTION, /* 0: computed from the factor, or from the next two */
       HF_ROPE_MSCALE,
       HF_ROPE_MSCALE_ALL,
       HF_ROPE_LOCAL_THETA, /* for layers with a window */
       HF_WINDOW_USED,
       HF_WINDOW,
       HF_WINDOW_FROM,  /* first layer with a window */
       HF_WINDOW_EVERY, /* every n-th layer has no window */
       HF_QUERY_SCALAR, /* scores are divided by its square root */
       HF_ATTENTION_CAP,
       HF_LOGIT_CAP,
       HF_SETTINGS
};
enum {           /* kinds of members; null counts as absent */
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
       HF_LAYER_TYPES, /* "sliding_attention" or "full_attention" for each layer; must follow from `from` and `every` */
       HF_IGNORED
};
typedef struct hf_field {
    const char *key;
    int32_t kind, setting;
    double fallback;      /* value if the member is absent, multiplied by setting `of` unless that is HF_NONE */
    int32_t of, required; /* required: the member must be present */
    int32_t same, above;  /* it must equal, or exceed, this setting; else `text` is the message */
    const char *text;
    int32_t read_only; /* exports omit it, as they do those from HF_TRUE to HF_EMPTY */
    int32_t none;      /* null means 0, not absent */
    int32_t only;      /* the value is 0 if this setting is 0 */
    const struct hf_field *inner;
} hf_field;
typedef struct {
    const char *type;
    const hf_field *fields; /* end with a null key */
} hf_rope;

/* ---- tensors ---------------------------------------------------------------------------------------- */
enum { HF_TURNED = 1 /* matrices stored as [inputs, outputs] */, HF_HEAD = 2 /* absent if the head is tied */ };
typedef struct {
    const char *ours, *theirs; /* prefixes of names */
    int32_t flags;
} hf_tensor;

/* Members of a file that are in no table are ignored. */
typedef struct {
    const char *model, *architecture; /* model: Tessera's name */
    const char *type;                 /* model_type; null: the same as `model` */
    const char *prefix;               /* prefix of tensor names, which some files omit */
    const hf_field *fields;           /* end with a null key; in the order in which they are read and written */
    const hf_tensor *tensors;         /* end with null names */
    int32_t layer_norm;               /* normalises by mean and variance */
} hf_family;

extern const hf_family hf_families[];   /* end with a null model */
extern const hf_field hf_any_fields[];  /* fields of every family, read first */
extern const hf_field hf_rope_fields[]; /* fields of every rope type */
extern const hf_rope hf_ropes[];        /* the default first; end with a null type */

/** Returns null if folders of this model are unknown. */
const hf_family *hf_family_find(const char *model);
const hf_family *hf_family_of_type(const char *type);
const char *hf_family_type(const hf_family *);
/** Returns the families' models or model_types, joined by `word`, such as "gpt2 or llama". */
const char *hf_family_names(int types, const char *word, char out[128]);
/** Returns the member of some family's config.json, or null. *family is a family that has it, preferably one without
 * LayerNorm. */
const hf_field *hf_family_field(const char *key, const hf_family **family);
#endif
