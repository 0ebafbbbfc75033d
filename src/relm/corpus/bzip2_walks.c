/* Decompress several blocks of bzip2 at a time: the module relm_bzip2_walks, which envs/make_environment.py
   compiles.

   To undo the Burrows-Wheeler transform of a block is a walk through its rows, up to 900,000, in an order that no cache foresees:
   each step waits for memory, and needs the step before. Here a step goes on by two bytes, and the walks of several blocks take
   turns, so that their waits overlap. The rest follows the description of the format at
   https://github.com/dsnet/compress/blob/master/doc/bzip2-format.pdf.

   The standard library's bz2 is the oracle. Whatever is unusual is left to it: damage, a block that bzip2 wrote before 0.9.5,
   content much larger than a block. Content is returned only if the block ends at the bit where it should, and if the content
   has the CRC that the block states. */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef RELM_SOURCE
#define RELM_SOURCE "" /* else the sha256 of this file, by which compiled.py knows a module of another version */
#endif

#define TOGETHER 4                /* blocks whose walks take turns */
#define LARGEST 900000            /* rows: bytes of a block before its runs are expanded */
#define CONTENT (LARGEST + 300000) /* bytes of a block's content; of few blocks is it larger */
#define BYTES 256
#define PAIRS (BYTES * BYTES)
#define SYMBOLS (BYTES + 2) /* two digits of runs, all bytes but the first, the end */
#define TABLES 6
#define SELECTORS 18002
#define GROUP 50       /* symbols that share a table */
#define LONGEST_CODE 20
#define SHORT_CODE 10  /* bits of a code that is found by one look */
#define NEAR 6         /* one entry for so many rows, as a power of 2 */

#define BLOCK_MAGIC_1 0x314159
#define BLOCK_MAGIC_2 0x265359

/* --- bits ---------------------------------------------------------------------------------------------------------------- */

typedef struct {
  const uint8_t *next, *stop;
  uint64_t ahead; /* bits that were read, the next one on the left */
  int count;      /* how many */
  int64_t left;   /* bits of the block that were not taken; below 0 it ended too early */
} Bits;

static void read_ahead(Bits *bits) {
  while (bits->count <= 56) {
    uint64_t byte = bits->next < bits->stop ? *bits->next++ : 0;
    bits->ahead |= byte << (56 - bits->count);
    bits->count += 8;
  }
}

static void drop(Bits *bits, int count) {
  bits->ahead <<= count;
  bits->count -= count;
  bits->left -= count;
}

/* Take 1 to 32 bits. */
static uint32_t take(Bits *bits, int count) {
  read_ahead(bits);
  uint32_t taken = (uint32_t)(bits->ahead >> (64 - count));
  drop(bits, count);
  return taken;
}

/* --- Huffman codes ------------------------------------------------------------------------------------------------------- */

typedef struct {
  uint16_t quick[1 << SHORT_CODE]; /* symbol << 5 | length of its code, by the next bits; 0: the code is longer */
  uint32_t limit[LONGEST_CODE + 1]; /* codes of at most this length are below it, with zeros after them */
  int32_t base[LONGEST_CODE + 1];   /* place of a code among the symbols, less the code */
  uint16_t symbols[SYMBOLS];        /* in the order of their codes */
} Table;

/* Return 0 if there are no codes of such lengths. */
static int make_table(Table *table, const uint8_t *lengths, int symbols) {
  uint32_t code = 0;
  int place = 0;
  memset(table->quick, 0, sizeof table->quick);
  for (int length = 1; length <= LONGEST_CODE; length++) {
    table->base[length] = place - (int32_t)code;
    for (int symbol = 0; symbol < symbols; symbol++) {
      if (lengths[symbol] != length) continue;
      if (code >= 1u << length) return 0;
      table->symbols[place++] = (uint16_t)symbol;
      if (length <= SHORT_CODE) {
        int rest = SHORT_CODE - length;
        for (uint32_t at = code << rest; at < (code + 1) << rest; at++) table->quick[at] = (uint16_t)(symbol << 5 | length);
      }
      code++;
    }
    table->limit[length] = code << (LONGEST_CODE - length);
    code <<= 1;
  }
  return 1;
}

/* Return the next symbol, or -1 if the bits are no code. */
static int take_symbol(Bits *bits, const Table *table) {
  if (bits->count < LONGEST_CODE) read_ahead(bits);
  uint32_t found = table->quick[bits->ahead >> (64 - SHORT_CODE)];
  if (found) {
    drop(bits, found & 31);
    return (int)(found >> 5);
  }
  uint32_t ahead = (uint32_t)(bits->ahead >> (64 - LONGEST_CODE));
  for (int length = SHORT_CODE + 1; length <= LONGEST_CODE; length++) {
    if (ahead >= table->limit[length]) continue;
    drop(bits, length);
    return table->symbols[(int32_t)(ahead >> (LONGEST_CODE - length)) + table->base[length]];
  }
  return -1;
}

/* --- a block ------------------------------------------------------------------------------------------------------------- */

/* The rows of a block are all its rotations, sorted. Their last bytes are what a block stores. */
typedef struct {
  uint32_t rows;
  uint32_t first; /* the row that is the text itself */
  uint32_t crc;
  int used;               /* how many different bytes there are */
  uint8_t bytes[BYTES];   /* these, in order */
  uint32_t counts[BYTES]; /* rows that end with a byte */
  uint8_t last[LARGEST];  /* the last byte of each row */
  uint32_t later[LARGEST]; /* the row that begins two bytes later */
  /* The first two bytes of a row: the pair of the first of `ends` above it, which is sought from `near` on. */
  uint32_t ends[PAIRS];
  uint8_t pairs[PAIRS][2];
  uint16_t near[(LARGEST >> NEAR) + 1];
  uint8_t text[LARGEST + 1]; /* pairs are written, one more than there is where the number of rows is odd */
} Block;

typedef struct {
  Block blocks[TOGETHER];
  Table tables[TABLES];
  uint8_t selectors[SELECTORS];
  uint32_t places[PAIRS];
  uint8_t content[TOGETHER * CONTENT];
} Memory;

/* Put a value at the front of those before its place, most often a near one, and return it. */
static uint8_t move_to_front(uint8_t *values, int place) {
  uint8_t value = values[place];
  for (; place & 7; place--) values[place] = values[place - 1];
  for (; place; place -= 8) memmove(values + place - 7, values + place - 8, 8);
  values[0] = value;
  return value;
}

static int read_tables(Bits *bits, Memory *memory, int symbols, int *selectors) {
  uint8_t order[TABLES] = {0, 1, 2, 3, 4, 5}, lengths[SYMBOLS];
  int tables = (int)take(bits, 3);
  *selectors = (int)take(bits, 15);
  if (tables < 2 || tables > TABLES || *selectors < 1 || *selectors > SELECTORS) return 0;
  for (int selector = 0; selector < *selectors; selector++) {
    int place = 0;
    while (take(bits, 1))
      if (++place == tables) return 0;
    memory->selectors[selector] = move_to_front(order, place);
  }
  for (int table = 0; table < tables; table++) {
    int length = (int)take(bits, 5);
    for (int symbol = 0; symbol < symbols; symbol++) {
      for (;;) {
        if (length < 1 || length > LONGEST_CODE) return 0;
        if (!take(bits, 1)) break;
        length += take(bits, 1) ? -1 : 1;
      }
      lengths[symbol] = (uint8_t)length;
    }
    if (!make_table(&memory->tables[table], lengths, symbols)) return 0;
  }
  return bits->left >= 0;
}

/* Read the last byte of each row. */
static int read_rows(Bits *bits, Memory *memory, Block *block, int selectors) {
  uint8_t order[BYTES];
  uint32_t rows = 0, run = 0, digit = 1;
  int end = block->used + 1, in_group = 0;
  const uint8_t *selector = memory->selectors, *stop = selector + selectors;
  const Table *table = memory->tables;
  memcpy(order, block->bytes, sizeof order);
  memset(block->counts, 0, sizeof block->counts);
  for (;; in_group--) {
    if (!in_group) {
      if (selector == stop || bits->left < 0) return 0;
      table = &memory->tables[*selector++];
      in_group = GROUP;
    }
    int symbol = take_symbol(bits, table);
    if (symbol < 0) return 0;
    if (symbol < 2) { /* a digit, 1 or 2, of the length of a run of the byte in front */
      if (digit > LARGEST) return 0;
      run += digit << symbol;
      digit <<= 1;
      continue;
    }
    if (run) {
      if (run > LARGEST - rows) return 0;
      memset(block->last + rows, order[0], run);
      block->counts[order[0]] += run;
      rows += run;
      run = 0;
      digit = 1;
    }
    if (symbol == end) break;
    if (rows == LARGEST) return 0;
    uint8_t byte = move_to_front(order, symbol - 1);
    block->counts[byte]++;
    block->last[rows++] = byte;
  }
  block->rows = rows;
  return bits->left == 0 && block->first < rows;
}

/* Find for each row the one that begins two bytes later, and where the rows of each pair of bytes end. */
static void link_rows(Memory *memory, Block *block) {
  uint32_t *places = memory->places, starts[BYTES], row = 0, stop, near = 0;
  int pairs = 0;
  memset(places, 0, sizeof memory->places);
  for (int byte = 0; byte < BYTES; byte++) {
    starts[byte] = row;
    for (stop = row + block->counts[byte]; row < stop; row++) places[block->last[row] << 8 | byte]++;
  }
  stop = 0;
  for (int one = 0; one < block->used; one++)
    for (int two = 0; two < block->used; two++) {
      int pair = block->bytes[one] << 8 | block->bytes[two];
      uint32_t count = places[pair];
      places[pair] = stop;
      if (!count) continue;
      stop += count;
      block->ends[pairs] = stop;
      block->pairs[pairs][0] = block->bytes[one];
      block->pairs[pairs][1] = block->bytes[two];
      for (; near << NEAR < stop; near++) block->near[near] = (uint16_t)pairs;
      pairs++;
    }
  for (row = 0; row < block->rows; row++) {
    uint8_t byte = block->last[row];
    uint8_t before = block->last[starts[byte]++]; /* of the row that begins with this byte and goes on as this row */
    block->later[places[before << 8 | byte]++] = row;
  }
}

/* Read a block that lies between two bits; return 0 if it is damaged or unusual. */
static int read_block(Memory *memory, Block *block, const uint8_t *data, uint64_t begin, uint64_t end) {
  Bits bits = {data + (begin >> 3), data + ((end + 7) >> 3), 0, 0, (int64_t)(end - begin) + (int64_t)(begin & 7)};
  int selectors;
  if (begin & 7) take(&bits, (int)(begin & 7));
  if (take(&bits, 24) != BLOCK_MAGIC_1 || take(&bits, 24) != BLOCK_MAGIC_2) return 0;
  block->crc = take(&bits, 32);
  if (take(&bits, 1)) return 0; /* bytes are changed at random places, as before 0.9.5 */
  block->first = take(&bits, 24);
  block->used = 0;
  uint32_t ranges = take(&bits, 16);
  for (int range = 0; range < 16; range++) {
    if (!(ranges >> (15 - range) & 1)) continue;
    uint32_t present = take(&bits, 16);
    for (int low = 0; low < 16; low++)
      if (present >> (15 - low) & 1) block->bytes[block->used++] = (uint8_t)(16 * range + low);
  }
  if (!block->used || !read_tables(&bits, memory, block->used + 2, &selectors)) return 0;
  if (!read_rows(&bits, memory, block, selectors)) return 0;
  link_rows(memory, block);
  return 1;
}

/* --- walks --------------------------------------------------------------------------------------------------------------- */

/* Write the texts of some blocks from a byte on, as far as the shortest goes; return how far. */
static inline __attribute__((always_inline)) uint32_t walk(Block *blocks, const int count, uint32_t from) {
  uint32_t rows[TOGETHER], shortest = LARGEST;
  for (int each = 0; each < count; each++) {
    rows[each] = blocks[each].first;
    if (blocks[each].rows < shortest) shortest = blocks[each].rows;
  }
  for (; from < shortest; from += 2)
#pragma GCC unroll 4
    for (int each = 0; each < count; each++) {
      Block *block = blocks + each;
      uint32_t row = rows[each], pair = block->near[row >> NEAR];
      while (row >= block->ends[pair]) pair++;
      memcpy(block->text + from, block->pairs[pair], 2);
      rows[each] = block->later[row];
    }
  for (int each = 0; each < count; each++) blocks[each].first = rows[each];
  return from;
}

static void write_texts(Block *blocks, int count) {
  uint32_t from = 0;
  if (count == 4) from = walk(blocks, 4, 0);
  if (count == 3) from = walk(blocks, 3, 0);
  if (count == 2) from = walk(blocks, 2, 0);
  for (int each = 0; each < count; each++) walk(blocks + each, 1, from);
}

/* --- content ------------------------------------------------------------------------------------------------------------- */

static uint32_t crc_of_bytes[8][BYTES]; /* of a byte, and with 1 to 7 zeros after it */

static void prepare_crc(void) {
  for (uint32_t byte = 0; byte < BYTES; byte++) {
    uint32_t crc = byte << 24;
    for (int bit = 0; bit < 8; bit++) crc = crc << 1 ^ (crc >> 31 ? 0x04c11db7 : 0);
    crc_of_bytes[0][byte] = crc;
  }
  for (int zeros = 1; zeros < 8; zeros++)
    for (int byte = 0; byte < BYTES; byte++) {
      uint32_t crc = crc_of_bytes[zeros - 1][byte];
      crc_of_bytes[zeros][byte] = crc << 8 ^ crc_of_bytes[0][crc >> 24];
    }
}

static uint32_t find_crc(const uint8_t *data, size_t size) {
  uint32_t crc = ~0u;
  for (; size >= 8; size -= 8, data += 8) {
    crc ^= (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
    crc = crc_of_bytes[7][crc >> 24] ^ crc_of_bytes[6][crc >> 16 & 255] ^ crc_of_bytes[5][crc >> 8 & 255] ^
          crc_of_bytes[4][crc & 255] ^ crc_of_bytes[3][data[4]] ^ crc_of_bytes[2][data[5]] ^ crc_of_bytes[1][data[6]] ^
          crc_of_bytes[0][data[7]];
  }
  for (; size; size--) crc = crc << 8 ^ crc_of_bytes[0][crc >> 24 ^ *data++];
  return ~crc;
}

/* Write a text with its runs: after four equal bytes the next one is the number of more. Return the size; 0: it does not fit. */
static size_t expand(const Block *block, uint8_t *content, size_t room) {
  size_t size = 0;
  int equal = 0, before = -1;
  for (uint32_t at = 0; at < block->rows; at++) {
    uint8_t byte = block->text[at];
    if (equal == 4) {
      if (byte > room - size) return 0;
      memset(content + size, before, byte);
      size += byte;
      equal = 0;
      before = -1;
      continue;
    }
    equal = byte == before ? equal + 1 : 1;
    before = byte;
    if (size == room) return 0;
    content[size++] = byte;
  }
  return equal == 4 ? 0 : size; /* the number is missing */
}

/* Return the size of the content of up to TOGETHER blocks, which is left in memory; 0: one is damaged or unusual. */
static size_t decompress_together(Memory *memory, const uint8_t *data, const uint64_t *bounds, int count) {
  size_t size = 0;
  for (int each = 0; each < count; each++)
    if (!read_block(memory, memory->blocks + each, data, bounds[2 * each], bounds[2 * each + 1])) return 0;
  write_texts(memory->blocks, count);
  for (int each = 0; each < count; each++) {
    size_t own = expand(memory->blocks + each, memory->content + size, sizeof memory->content - size);
    if (!own || find_crc(memory->content + size, own) != memory->blocks[each].crc) return 0;
    size += own;
  }
  return size;
}

/* --- Python -------------------------------------------------------------------------------------------------------------- */

static Memory *memory; /* kept between calls, which the interpreter's lock makes one after the other */

/* Read up to 2 * TOGETHER bits from a sequence; return how many, -1 after an error. */
static int read_bounds(PyObject *given, uint64_t *bounds, uint64_t bits) {
  Py_ssize_t size = PySequence_Size(given);
  if (size < 0) return -1;
  if (size == 0 || size % 2 || size > 2 * TOGETHER) {
    PyErr_Format(PyExc_ValueError, "expected the begin and the end of 1 to %d blocks, found %zd bits", TOGETHER, size);
    return -1;
  }
  for (Py_ssize_t at = 0; at < size; at++) {
    PyObject *item = PySequence_GetItem(given, at);
    if (!item) return -1;
    bounds[at] = PyLong_AsUnsignedLongLong(item);
    Py_DECREF(item);
    if (PyErr_Occurred()) return -1;
    if (bounds[at] > bits || (at % 2 && bounds[at] < bounds[at - 1])) {
      PyErr_SetString(PyExc_ValueError, "a block ends before it begins, or after the data");
      return -1;
    }
  }
  return (int)size;
}

static PyObject *decompress(PyObject *self, PyObject *arguments) {
  const char *data;
  Py_ssize_t length;
  PyObject *given, *content = NULL;
  uint64_t bounds[2 * TOGETHER];
  (void)self;
  if (!PyArg_ParseTuple(arguments, "y#O:decompress", &data, &length, &given)) return NULL;
  int count = read_bounds(given, bounds, 8 * (uint64_t)length);
  if (count < 0) return NULL;
  if (!memory && !(memory = malloc(sizeof *memory))) return PyErr_NoMemory();
  size_t size = decompress_together(memory, (const uint8_t *)data, bounds, count / 2);
  if (!size) Py_RETURN_NONE;
  content = PyBytes_FromStringAndSize((const char *)memory->content, (Py_ssize_t)size);
  return content;
}

static PyMethodDef methods[] = {
    {"decompress", decompress, METH_VARARGS,
     "decompress(data, bounds)\n--\n\nReturn the content of blocks, given by the bits where each begins and ends; None: ask bz2."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "relm_bzip2_walks", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_relm_bzip2_walks(void) {
  prepare_crc();
  PyObject *made = PyModule_Create(&module);
  if (made && PyModule_AddStringConstant(made, "SOURCE", RELM_SOURCE)) Py_CLEAR(made);
  return made;
}
