// Counts what malloc and its relatives give out, from outside of the process: LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t), __libc_free(void *);

static atomic_long live, peak;

static void *counted(void *block) {
  if (block) {
    long now = atomic_fetch_add(&live, malloc_usable_size(block)) + malloc_usable_size(block);
    long most = atomic_load(&peak);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) {
    }
  }
  return block;
}

static void gone(void *block) {
  if (block) atomic_fetch_sub(&live, malloc_usable_size(block));
}

void *malloc(size_t size) { return counted(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
  void *found = memalign(alignment, size);
  if (found) *block = found;
  return found ? 0 : ENOMEM;
}

void *realloc(void *block, size_t size) {
  gone(block);
  void *found = __libc_realloc(block, size);
  if (!found && size) counted(block); // it stays where it was
  return counted(found);
}

void free(void *block) {
  gone(block);
  __libc_free(block);
}

long malloc_live(void) { return atomic_load(&live); }
long malloc_peak(void) { return atomic_load(&peak); }
void malloc_forget_peak(void) { atomic_store(&peak, atomic_load(&live)); }
