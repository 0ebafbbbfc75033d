/* Passes over text: the module relm_text_passes, which envs/make_environment.py compiles.

   Each function does what the Python function of the same name does, in documents.py and in quotes.py, links.py, lines.py and
   spaces.py of wikipedia/, which are its oracle. The rules that need Unicode, or a wiki's names, stay in Python:
   quotes that do not pair, links with a colon, headings and unusual lines are passed to a function there. Texts are read and
   written as UTF-8, in which no byte of another character looks like ASCII. */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef RELM_SOURCE
#define RELM_SOURCE "" /* else the sha256 of this file, by which compiled.py knows a module of another version */
#endif

#define DEEPEST 12 /* links inside links, as in links.py */
#define LEVELS 6   /* of headings */
#define INDENT "\x1f" /* as in lines.py */
#define NOTHING "\x04n" /* as in templates.py */

/* --- texts --------------------------------------------------------------------------------------------------------------- */

typedef struct {
  const char *data;
  size_t size;
} Piece;

typedef struct {
  char *data;
  size_t size, room;
} Output;

/* Return 0, with a Python error, if the argument is no text. */
static int read_text(PyObject *text, Piece *piece) {
  Py_ssize_t size;
  piece->data = PyUnicode_AsUTF8AndSize(text, &size);
  piece->size = (size_t)size;
  return piece->data != NULL;
}

static PyObject *as_text(Piece piece) { return PyUnicode_DecodeUTF8(piece.data, (Py_ssize_t)piece.size, NULL); }

/* Make room for so many bytes in all; return 0, with a Python error, if there is none. */
static int reserve(Output *output, size_t room) {
  char *data = realloc(output->data, room + 1);
  if (!data) {
    PyErr_NoMemory();
    return 0;
  }
  output->data = data;
  output->room = room;
  return 1;
}

/* Append bytes; return 0 after an error. */
static int put(Output *output, const char *data, size_t size) {
  if (size > output->room - output->size && !reserve(output, 2 * (output->size + size))) return 0;
  memcpy(output->data + output->size, data, size);
  output->size += size;
  return 1;
}

/* Append a text that a Python function returned, and release it; return 0 if it is none. */
static int put_answer(Output *output, PyObject *answer) {
  Piece piece;
  int done = answer && read_text(answer, &piece) && put(output, piece.data, piece.size);
  Py_XDECREF(answer);
  return done;
}

/* Return the first place at or after `from` where a character stands twice, or `end`. */
static const char *find_double(const char *from, const char *end, char sought) {
  while (from < end && (from = memchr(from, sought, (size_t)(end - from)))) {
    if (from + 1 < end && from[1] == sought) return from;
    from++;
  }
  return end;
}

static const char *find_byte(const char *from, const char *end, char sought) {
  const char *found = memchr(from, sought, (size_t)(end - from));
  return found ? found : end;
}

/* --- words --------------------------------------------------------------------------------------------------------------- */

/* Return how many bytes there are of a character that str.split takes for a space; 0: it is none. */
static size_t measure_whitespace(const uint8_t *at, const uint8_t *end) {
  if (*at < 0x80) return *at == ' ' || (*at >= 0x09 && *at <= 0x0d) || (*at >= 0x1c && *at <= 0x1f);
  if (*at == 0xc2) return end - at > 1 && (at[1] == 0x85 || at[1] == 0xa0) ? 2 : 0; /* U+0085, U+00A0 */
  if (end - at < 3) return 0;
  uint32_t three = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
  int is_space = three == 0xe19a80 || (three >= 0xe28080 && three <= 0xe2808a) || /* U+1680, U+2000 to U+200A */
                 three == 0xe280a8 || three == 0xe280a9 || three == 0xe280af ||   /* U+2028, U+2029, U+202F */
                 three == 0xe2819f || three == 0xe38080;                          /* U+205F, U+3000 */
  return is_space ? 3 : 0;
}

static PyObject *count_words(PyObject *self, PyObject *text) {
  Piece piece;
  size_t words = 0;
  (void)self;
  if (!read_text(text, &piece)) return NULL;
  const uint8_t *at = (const uint8_t *)piece.data, *end = at + piece.size;
  for (int in_word = 0; at < end;) {
    size_t size = *at > ' ' && *at < 0x80 ? 0 : measure_whitespace(at, end);
    words += !size && !in_word;
    in_word = !size;
    at += size ? size : 1;
  }
  return PyLong_FromSize_t(words);
}

/* --- quotes -------------------------------------------------------------------------------------------------------------- */

/* Append a line without its runs of two and three quotes, or what Python makes of it if they are not in pairs. */
static int put_line(Output *output, const char *line, const char *end, PyObject *remove_from_line) {
  size_t before = output->size;
  unsigned bold = 0, italic = 0;
  const char *from = line;
  for (;;) {
    const char *run = find_double(from, end, '\''), *after = run;
    if (!put(output, from, (size_t)(run - from))) return 0;
    if (run == end) break;
    while (after < end && *after == '\'') after++;
    if (after - run > 3) bold = italic = 1;
    else if (after - run == 3) bold++;
    else italic++;
    from = after;
    if (after - run > 3) break;
  }
  if (!(bold & italic & 1)) return 1;
  output->size = before;
  PyObject *given = as_text((Piece){line, (size_t)(end - line)});
  PyObject *answer = given ? PyObject_CallFunctionObjArgs(remove_from_line, given, NULL) : NULL;
  Py_XDECREF(given);
  return put_answer(output, answer);
}

static PyObject *remove_quotes(PyObject *self, PyObject *arguments) {
  PyObject *text, *remove_from_line, *result = NULL;
  Piece piece;
  Output output = {NULL, 0, 0};
  (void)self;
  if (!PyArg_ParseTuple(arguments, "UO:remove_quotes", &text, &remove_from_line) || !read_text(text, &piece)) return NULL;
  const char *from = piece.data, *end = from + piece.size, *quotes = find_double(from, end, '\'');
  if (quotes == end) return Py_NewRef(text);
  if (!reserve(&output, piece.size)) return NULL;
  while (quotes < end) {
    const char *line = quotes;
    while (line > from && line[-1] != '\n') line--;
    if (!put(&output, from, (size_t)(line - from))) goto done;
    from = find_byte(quotes, end, '\n');
    if (!put_line(&output, line, from, remove_from_line)) goto done;
    quotes = find_double(from, end, '\'');
  }
  if (put(&output, from, (size_t)(end - from))) result = as_text((Piece){output.data, output.size});
done:
  free(output.data);
  return result;
}

/* --- links --------------------------------------------------------------------------------------------------------------- */

/* Return where the next link begins: of [[[ the first two brackets, of more the two before the last. */
static const char *find_link(const char *from, const char *end) {
  const char *start = find_double(from, end, '['), *after = start;
  while (after < end && *after == '[') after++;
  return after - start > 3 ? after - 3 : start;
}

/* Append the text that a link shows. */
static int put_link(Output *output, const char *body, const char *end, PyObject *choose) {
  const char *bar = find_byte(body, end, '|'), *label = bar < end ? bar + 1 : end;
  int has_colon = find_byte(body, bar, ':') < bar || (body < bar && *body == '/');
  if (!has_colon && label < end) return put(output, label, (size_t)(end - label));
  if (!has_colon && bar == end) {
    int begins_line = output->size && output->data[output->size - 1] == '\n'; /* then "#" is no item of a list */
    if (body < end && *body == '#' && begins_line && !put(output, NOTHING, sizeof NOTHING - 1)) return 0;
    return put(output, body, (size_t)(end - body));
  }
  PyObject *answer = PyObject_CallFunction(
      choose, "s#s#s#", body, (Py_ssize_t)(bar - body), bar, (Py_ssize_t)(label - bar), label, (Py_ssize_t)(end - label));
  return put_answer(output, answer);
}

/* Append a text with the text of each innermost link in its place; return how many there are, -1 after an error. */
static long replace_innermost(Output *output, Piece piece, PyObject *choose) {
  const char *end = piece.data + piece.size, *link = find_link(piece.data, end);
  long found = 0;
  if (!put(output, piece.data, (size_t)(link - piece.data))) return -1;
  while (link < end) {
    const char *body = link + 2, *next = find_link(body, end), *closing = find_double(body, next, ']');
    const char *rest = closing < next ? closing + 2 : link;
    if (closing < next) {
      found++;
      if (!put_link(output, body, closing, choose)) return -1;
    }
    if (!put(output, rest, (size_t)(next - rest))) return -1;
    link = next;
  }
  return found;
}

/* Put INDENT in place of a space that begins a line. */
static void mark_indents(char *data, size_t size) {
  for (char *end = data + size, *at = memchr(data, '\n', size); at; at = memchr(at, '\n', (size_t)(end - at)))
    if (++at < end && *at == ' ') *at = *INDENT;
}

static PyObject *replace_links(PyObject *self, PyObject *arguments) {
  PyObject *text, *choose, *result = NULL;
  Piece piece;
  Output outputs[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
  long found = 1;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "UO:replace_links", &text, &choose) || !read_text(text, &piece)) return NULL;
  if (!reserve(&outputs[1], piece.size) || !put(&outputs[1], piece.data, piece.size)) goto done;
  piece.data = outputs[1].data;
  mark_indents(outputs[1].data, piece.size);
  for (int pass = 0; pass < DEEPEST && found > 0; pass++) {
    Output *output = outputs + pass % 2;
    output->size = 0;
    found = output->data || reserve(output, piece.size) ? replace_innermost(output, piece, choose) : -1;
    if (found > 0) piece = (Piece){output->data, output->size};
  }
  if (found >= 0) result = as_text(piece);
done:
  free(outputs[0].data);
  free(outputs[1].data);
  return result;
}

/* --- lines --------------------------------------------------------------------------------------------------------------- */

typedef struct {
  PyObject *read_heading, *is_text; /* of lines.py */
  Output output;
  PyObject *titles[LEVELS]; /* of headings that wait for a text, each of a lower level in the outline than the one before */
  long levels[LEVELS];
  int waiting;
  long dropping; /* the level of the heading whose section is left out; 0: none */
  int in_paragraph;
} Outline;

static void forget_from(Outline *outline, int first) {
  while (outline->waiting > first) Py_DECREF(outline->titles[--outline->waiting]);
}

static int begin_line(Output *output) { return !output->size || put(output, "\n", 1); }

/* Append a line, after the headings that wait for one. */
static int put_text(Outline *outline, Piece line) {
  Output *output = &outline->output;
  for (int each = 0; each < outline->waiting; each++)
    if (!begin_line(output) || !put_answer(output, Py_NewRef(outline->titles[each]))) return 0;
  forget_from(outline, 0);
  return begin_line(output) && put(output, line.data, line.size);
}

/* Append a line to its paragraph. */
static int put_plain(Outline *outline, Piece line) {
  if (outline->dropping) return 1;
  int continues = outline->in_paragraph;
  outline->in_paragraph = 1;
  if (!continues) return put_text(outline, line);
  return put(&outline->output, " ", 1) && put(&outline->output, line.data, line.size);
}

/* Note a heading if a line is one. Return 1 if it is, 0 if it is not, -1 after an error. */
static int note_heading(Outline *outline, Piece line) {
  PyObject *given = as_text(line), *heading = given ? PyObject_CallFunctionObjArgs(outline->read_heading, given, NULL) : NULL;
  PyObject *title;
  long level;
  int is_dropped, found = heading != Py_None;
  Py_XDECREF(given);
  if (!heading || (found && !PyArg_ParseTuple(heading, "lUp:heading", &level, &title, &is_dropped))) {
    Py_XDECREF(heading);
    return -1;
  }
  if (found && !(outline->dropping && level > outline->dropping)) {
    int above = 0;
    while (above < outline->waiting && outline->levels[above] < level) above++;
    forget_from(outline, above);
    outline->dropping = is_dropped ? level : 0;
    if (!is_dropped && above < LEVELS) {
      outline->levels[above] = level;
      outline->titles[outline->waiting++] = Py_NewRef(title);
    }
  }
  Py_DECREF(heading);
  return found;
}

static int is_letter_or_digit(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9');
}

/* Return whether a marked line is text, or -1 after an error. In a list an ASCII letter or digit says so. */
static int is_text_line(Outline *outline, Piece line) {
  if (strchr("*#:;", *line.data))
    for (size_t at = 0; at < line.size; at++)
      if (is_letter_or_digit(line.data[at])) return 1;
  PyObject *given = as_text(line), *answer = given ? PyObject_CallFunctionObjArgs(outline->is_text, given, NULL) : NULL;
  Py_XDECREF(given);
  int found = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return found;
}

/* Append what a line that begins with one of the marks shows; return 0 after an error. */
static int put_marked(Outline *outline, Piece line) {
  outline->in_paragraph = 0;
  int is_heading = *line.data == '=' ? note_heading(outline, line) : 0;
  if (is_heading || outline->dropping) return is_heading >= 0;
  int is_text = is_text_line(outline, line);
  if (is_text <= 0) return !is_text;
  while (line.size && *line.data && strchr("*#:; \t" INDENT, *line.data)) line.data++, line.size--;
  if (line.size >= 4 && !memcmp(line.data, "----", 4)) /* a ruler, and what follows it */
    while (line.size && *line.data == '-') line.data++, line.size--;
  return !line.size || put_text(outline, line);
}

static PyObject *collect_lines(PyObject *self, PyObject *arguments) {
  PyObject *text, *result = NULL;
  Piece piece;
  Outline outline = {0};
  (void)self;
  if (!PyArg_ParseTuple(arguments, "UOO:collect_lines", &text, &outline.read_heading, &outline.is_text)) return NULL;
  if (!read_text(text, &piece) || !reserve(&outline.output, piece.size)) return NULL;
  for (const char *from = piece.data, *end = from + piece.size, *next; from < end; from = next + 1) {
    next = find_byte(from, end, '\n');
    int is_spaced = *from == ' ' || *from == '\t'; /* what stood before the spaces vanished */
    while (from < next && (*from == ' ' || *from == '\t')) from++;
    Piece line = {from, (size_t)(next - from)};
    int is_marked = line.size && !is_spaced && *from && strchr("*#:;|={-!" INDENT, *from);
    if (!line.size) outline.in_paragraph = 0;
    else if (!(is_marked ? put_marked(&outline, line) : put_plain(&outline, line))) goto done;
  }
  result = as_text((Piece){outline.output.data, outline.output.size});
done:
  forget_from(&outline, 0);
  free(outline.output.data);
  return result;
}

/* --- spaces -------------------------------------------------------------------------------------------------------------- */

/* Each pass rewrites a text in its place and returns its new end, after which there are PADDING zeros. Places where it may have
   something to do are sought many bytes at once. */

#define AT_ONCE 16
#define PADDING (AT_ONCE + 1)

typedef uint8_t Bytes __attribute__((vector_size(AT_ONCE)));
typedef int8_t Found __attribute__((vector_size(AT_ONCE))); /* for each byte 0 or -1 */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef struct {
  const char *at, *end; /* what is to be read */
  char *out;            /* where it is to be written, before `at` or there */
} Rewriting;

/* Copy bytes up to the first that is sought, given each byte and the next one. */
ALWAYS_INLINE void copy_until(Rewriting *text, Found (*seek)(Bytes byte, Bytes next)) {
  const char *from = text->at, *at = from;
  for (; at < text->end; at += AT_ONCE) {
    Bytes bytes, next;
    memcpy(&bytes, at, AT_ONCE);
    memcpy(&next, at + 1, AT_ONCE);
    Found found = seek(bytes, next);
    uint64_t halves[2];
    memcpy(halves, &found, sizeof halves);
    if (!(halves[0] | halves[1])) continue;
    for (int each = 0; !found[each]; each++) at++;
    break;
  }
  if (at > text->end) at = text->end;
  if (text->out != from) memmove(text->out, from, (size_t)(at - from));
  text->out += at - from;
  text->at = at;
}

static char *end_of(Rewriting *text) {
  memset(text->out, 0, PADDING);
  return text->out;
}

static int is_separator(char byte) { return byte == ',' || byte == ';' || byte == ':'; }

#define ONE_OF(byte, one, two, three) (((byte) == (one)) | ((byte) == (two)) | ((byte) == (three)))

/* Return how many bytes of a space stand here; 0: none. */
static size_t measure_space(const char *at) {
  if (*at == ' ' || *at == '\t' || *at == '\r') return 1;
  if (!memcmp(at, "\xc2\xa0", 2)) return 2;
  return !memcmp(at, "\xe2\x80\x89", 3) || !memcmp(at, "\xe2\x80\xaf", 3) || !memcmp(at, "\xe3\x80\x80", 3) ? 3 : 0;
}

/* Find the spaces other than ' ', by two bytes, and each ' ' before a space; also some places where there is nothing to do, few in
   Japanese text, where most characters begin with 0xe3. */
ALWAYS_INLINE Found seek_run(Bytes byte, Bytes next) {
  Found is_space = (byte == '\t') | (byte == '\r') | ((byte == 0xc2) & (next == 0xa0)) |
                   (((byte == 0xe2) | (byte == 0xe3)) & (next == 0x80));
  return is_space | ((byte == ' ') & (ONE_OF(next, ' ', '\t', '\r') | ONE_OF(next, 0xc2, 0xe2, 0xe3)));
}

/* Make a single ' ' of each run of spaces. */
static char *join_spaces(char *start, const char *end) {
  Rewriting text = {start, end, start};
  for (;;) {
    copy_until(&text, seek_run);
    if (text.at == end) return end_of(&text);
    size_t size = measure_space(text.at);
    *text.out++ = size ? ' ' : *text.at++;
    for (; size; size = measure_space(text.at)) text.at += size;
  }
}

ALWAYS_INLINE Found seek_opening(Bytes byte, Bytes next) {
  return (byte == '(') & ((next == ' ') | ONE_OF(next, ',', ';', ':'));
}

/* Remove spaces and separators after an opening parenthesis. */
static char *tidy_after_opening(char *start, const char *end) {
  Rewriting text = {start, end, start};
  for (;;) {
    copy_until(&text, seek_opening);
    if (text.at == end) return end_of(&text);
    *text.out++ = *text.at++;
    if (*text.at == ' ' || text.at[1] == ' ')
      while (*text.at == ' ' || is_separator(*text.at)) text.at++;
  }
}

ALWAYS_INLINE Found seek_closing(Bytes byte, Bytes next) { return (byte == ' ') & (next == ')'); }

/* Remove a space before a closing parenthesis, and one separator before that. */
static char *tidy_before_closing(char *start, const char *end) {
  Rewriting text = {start, end, start};
  for (;;) {
    copy_until(&text, seek_closing);
    if (text.at == end) return end_of(&text);
    if (text.out > start && is_separator(text.out[-1]))
      for (text.out--; text.out > start && text.out[-1] == ' ';) text.out--;
    *text.out++ = ')';
    text.at += 2;
  }
}

ALWAYS_INLINE Found seek_empty(Bytes byte, Bytes next) {
  return (byte == '(') & ((next == ')') | (next == ' ') | ONE_OF(next, ',', ';', ':') | ONE_OF(next, '/', '|', '-') | (next == 0xe2));
}

/* Remove parentheses, after a space or at a line's beginning, that hold only spaces and punctuation. */
static char *remove_empty_parentheses(char *start, const char *end) {
  Rewriting text = {start, end, start};
  for (;;) {
    copy_until(&text, seek_empty);
    if (text.at == end) return end_of(&text);
    const char *opening = text.at, *inside = opening + 1;
    int is_alone = opening == start || opening[-1] == ' ' || opening[-1] == '\n';
    for (;;) {
      if (*inside == ' ' || is_separator(*inside) || *inside == '/' || *inside == '|' || *inside == '-') inside++;
      else if (!strncmp(inside, "\xe2\x80\x93", 3) || !strncmp(inside, "\xe2\x80\x94", 3)) inside += 3; /* two dashes */
      else break;
    }
    if (is_alone && *inside == ')') text.at = inside + 1;
    else *text.out++ = *text.at++;
  }
}

ALWAYS_INLINE Found seek_punctuation(Bytes byte, Bytes next) { return (byte == ' ') & ((next == ',') | (next == '.')); }

/* Remove the space before a comma or a point that ends a word. */
static char *tidy_before_punctuation(char *start, const char *end) {
  Rewriting text = {start, end, start};
  for (;;) {
    copy_until(&text, seek_punctuation);
    if (text.at == end) return end_of(&text);
    const char *at = text.at, *after = at + 2;
    int ends_word = at > start && at[-1] != ' ' && at[-1] != '\n' && (after == end || *after == ' ' || *after == '\n');
    if (ends_word) text.at++;
    else *text.out++ = *text.at++;
  }
}

/* Remove the spaces at both ends of each line, and empty lines. */
static char *strip_lines(char *text, const char *end) {
  char *out = text;
  for (const char *line = text; line < end;) {
    const char *next = find_byte(line, end, '\n'), *stop = next;
    while (line < stop && *line == ' ') line++;
    while (line < stop && stop[-1] == ' ') stop--;
    if (line < stop && out > text) *out++ = '\n';
    memmove(out, line, (size_t)(stop - line));
    out += stop - line;
    line = next < end ? next + 1 : end;
  }
  return out;
}

static PyObject *tidy_spaces(PyObject *self, PyObject *text) {
  Piece piece;
  (void)self;
  if (!read_text(text, &piece)) return NULL;
  char *copy = malloc(piece.size + PADDING), *end;
  if (!copy) return PyErr_NoMemory();
  memcpy(copy, piece.data, piece.size);
  memset(copy + piece.size, 0, PADDING);
  end = join_spaces(copy, copy + piece.size);
  end = tidy_after_opening(copy, end);
  end = tidy_before_closing(copy, end);
  end = remove_empty_parentheses(copy, end);
  end = join_spaces(copy, end);
  end = tidy_before_punctuation(copy, end);
  end = strip_lines(copy, end);
  PyObject *result = as_text((Piece){copy, (size_t)(end - copy)});
  free(copy);
  return result;
}

/* --- Python -------------------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"count_words", count_words, METH_O, "count_words(text)\n--\n\nSee documents.py."},
    {"remove_quotes", remove_quotes, METH_VARARGS, "remove_quotes(text, remove_from_line)\n--\n\nSee wikitext_quotes.py."},
    {"replace_links", replace_links, METH_VARARGS, "replace_links(text, choose)\n--\n\nSee wikitext_links.py."},
    {"collect_lines", collect_lines, METH_VARARGS, "collect_lines(text, read_heading, is_text)\n--\n\nSee wikitext_lines.py."},
    {"tidy_spaces", tidy_spaces, METH_O, "tidy_spaces(text)\n--\n\nSee wikitext_spaces.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "relm_text_passes", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_relm_text_passes(void) {
  PyObject *made = PyModule_Create(&module);
  if (made && PyModule_AddStringConstant(made, "SOURCE", RELM_SOURCE)) Py_CLEAR(made);
  return made;
}
