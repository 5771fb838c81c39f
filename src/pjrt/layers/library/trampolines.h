/* Trampolines: many small functions that differ in a number. Each takes one pointer, as all functions of a table do, and
 * jumps to a common function with the pointer and its own number.
 *
 * They are written in assembler, because a compiler needs half a minute for as many functions in C, and because their
 * size is then known: the n-th lies n times 16 bytes behind the first. */
#ifndef PJRT_LAYER_TRAMPOLINES_H_
#define PJRT_LAYER_TRAMPOLINES_H_

#if !defined(__ELF__) || !(defined(__x86_64__) || defined(__aarch64__))
#error "layers have trampolines for Linux on x86-64 and AArch64 only"
#endif

#ifdef __x86_64__
#define PJRT_ENTER_WITH_NUMBER "endbr64; movl $number, %%esi; jmp "
#else
#define PJRT_ENTER_WITH_NUMBER "hint 34; movz w1, #number & 0xffff; movk w1, #number >> 16, lsl 16; b "
#endif

/* Defines `count` trampolines called `name`, which jump to enter(void *argument, int number). The function around the
 * assembler is there because only in a function it can be given the count. */
#define PJRT_DEFINE_TRAMPOLINES(name, count, enter)                                                                  \
  extern const char name[] __attribute__((visibility("hidden")));                                                    \
  __attribute__((used)) static void name##_definition(void) {                                                        \
    __asm__ volatile(".pushsection .text, \"ax\", %%progbits\n"                                                      \
                     ".p2align 4\n"                                                                                  \
                     ".hidden " #name "\n.globl " #name "\n" #name ":\n"                                             \
                     ".set number, 0\n"                                                                              \
                     ".rept %c0\n"                                                                                   \
                     ".p2align 4\n" PJRT_ENTER_WITH_NUMBER #enter "\n"                                               \
                     ".set number, number + 1\n"                                                                     \
                     ".endr\n"                                                                                       \
                     ".popsection\n" ::"i"(count));                                                                  \
  }

/* The n-th trampoline, as an address. */
#define PJRT_TRAMPOLINE(name, n) ((const void *)(name + 16 * (size_t)(n)))

#endif /* PJRT_LAYER_TRAMPOLINES_H_ */
