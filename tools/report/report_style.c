/* SPDX-License-Identifier: BSD-3-Clause */
/* Colours, light and dark, and patterns of both pictures. */
#include <string.h>

#include "report.h"

/* Every colour has a contrast of 3 or more against its page. The six categories that fill most pictures are told apart
 * in simulated protanopia, deuteranopia and tritanopia; the others wear a pattern too, and every area ends in a line of
 * the page's colour. */
static const struct {
    const char *light, *dark, *pattern;
} categories[REPORT_CATEGORIES] = {
    { "#1d4f91", "#4a7fd4", NULL },     /* sharded parameter */
    { "#0f766e", "#3fc4b2", NULL },     /* optimizer state */
    { "#9a3412", "#c8643a", NULL },     /* sharded gradient */
    { "#57606a", "#8b949e", "level" },  /* buffer */
    { "#4a90d9", "#9cc8f5", NULL },     /* unsharded parameter */
    { "#d9730d", "#f5ae62", NULL },     /* unsharded gradient */
    { "#8250c4", "#c3a0ff", NULL },     /* activation */
    { "#a88400", "#d9bd4a", "rising" }, /* communication */
    { "#3f9142", "#7ccf85", "dots" },   /* input */
    { "#b8447f", "#e58fb8", "falling" }, { "#8c959f", "#b4bcc6", "grid" }, { "#57606a", "#8b949e", "grid" },
};

const char *report_category_pattern(int category) {
    return categories[category].pattern;
}

/* An operation has the colour of the memory that it fills or frees: a gather has the colour of unsharded parameters. */
static const struct {
    const char *part;
    int category;
} ops[] = { { "wait", 10 },  { "gather", 4 },    { "reduce", 5 },  { "replicate", 5 }, { "norm", 9 }, { "backward", 0 },
            { "again", 3 },  { "recompute", 3 }, { "forward", 6 }, { "optim", 1 },     { "step", 1 }, { "input", 8 },
            { "result", 8 }, { "fetch", 4 },     { "stow", 6 },    { "cast", 9 },      { "sum", 2 } };

int report_op_colour(const char *op) {
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strstr(op, ops[i].part))
            return ops[i].category;
    return REPORT_CATEGORIES - 2;
}

/* The colours that do not belong to a category. */
static const char *const colours[2] = {
    ".ink{fill:#1b1f24}.muted{fill:#57606a}.page{fill:#fff}.rule{stroke:#d8dee4}.edge{stroke:#8c959f}"
    ".line{stroke:#1b1f24}.under{stroke:#fff}.budget{stroke:#cf222e}.budget-text{fill:#b3131f}"
    ".on{fill:#fff}.on.o4,.on.o5,.on.o7,.on.o8,.on.o10{fill:#0d1117}.weave{stroke:#fff;fill:#fff}.seam{stroke:#fff}."
    "halo{stroke:#fff}",
    ".ink{fill:#e6edf3}.muted{fill:#9aa4af}.page{fill:#14171c}.rule{stroke:#2b323b}.edge{stroke:#6e7681}"
    ".line{stroke:#f5f8fa}.under{stroke:#14171c}.budget{stroke:#ff7b72}.budget-text{fill:#ff9a92}"
    ".on,.on.o4,.on.o5,.on.o7,.on.o8,.on.o10{fill:#0d1117}.weave{stroke:#14171c;fill:#14171c}.seam{stroke:#14171c}."
    "halo{stroke:#14171c}",
};

static void put_scheme(FILE *out, int dark) {
    fputs(colours[dark], out);
    for (int c = 0; c < REPORT_CATEGORIES; c++)
        fprintf(out, ".c%d{fill:%s}", c, dark ? categories[c].dark : categories[c].light);
    fputc('\n', out);
}

void report_svg_style(FILE *out) {
    fputs("svg text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif;"
          "font-size:12px;font-variant-numeric:tabular-nums}\n"
          "svg .title{font-size:15px;font-weight:600}svg .small{font-size:11px}svg .strong{font-weight:600}"
          ".halo{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
          ".end{text-anchor:end}.middle{text-anchor:middle}.none{fill:none}\n"
          ".weave{stroke-opacity:.6;fill-opacity:.6}\n",
          out);
    put_scheme(out, 0);
    fputs("@media screen and (prefers-color-scheme:dark){", out);
    put_scheme(out, 1);
    fputs("}\n", out);
}

void report_svg_defs(FILE *out) {
    static const struct {
        const char *name, *content;
    } patterns[] = {
        { "level", "<path class=\"weave\" d=\"M0 3H6\"/>" },
        { "rising", "<path class=\"weave\" d=\"M-1 1L1 -1M0 6L6 0M5 7L7 5\"/>" },
        { "falling", "<path class=\"weave\" d=\"M-1 5L1 7M0 0L6 6M5 -1L7 1\"/>" },
        { "dots", "<circle class=\"weave\" cx=\"3\" cy=\"3\" r=\".8\"/>" },
        { "grid", "<path class=\"weave\" d=\"M0 3H6M3 0V6\"/>" },
    };
    fputs("<defs>", out);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        fprintf(out, "<pattern id=\"%s\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">%s</pattern>",
                patterns[i].name, patterns[i].content);
    fputs("</defs>\n", out);
}
