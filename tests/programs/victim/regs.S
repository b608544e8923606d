/* void raw_syscall(struct raw *raw, const void *vectors, long level)
 *
 * level 0: xmm, 1: ymm, 2: zmm and masks. Offsets are those of struct raw. */
	.text
	.globl	raw_syscall
	.type	raw_syscall, @function
raw_syscall:
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	sub	$8, %rsp
	stmxcsr	(%rsp)
	fnstcw	4(%rsp)
	push	%rdx
	push	%rdi		/* (%rsp): raw, 8(%rsp): level */

	/* x87: another rounding, and three values */
	fninit
	fldcw	control(%rip)
	fld1
	fldpi
	fldl2e
	ldmxcsr	status(%rip)

	cmp	$1, %rdx
	ja	2f
	je	1f
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	movdqu	64*\n(%rsi), %xmm\n
	.endr
	jmp	3f
1:	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	vmovdqu	64*\n(%rsi), %ymm\n
	.endr
	jmp	3f
2:	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	vmovdqu64 64*\n(%rsi), %zmm\n
	.endr
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7
	kmovq	64*\n(%rsi), %k\n
	.endr
3:
	mov	%rdi, %rcx
	mov	$0x5ed0000000000001, %rax
	.irp	n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
	mov	%rax, -8*\n(%rsp)
	inc	%rax
	.endr
	mov	%rsp, 168(%rcx)
	mov	$0xb000000000000001, %rbx
	mov	$0xb000000000000002, %rbp
	mov	$0xb000000000000003, %r12
	mov	$0xb000000000000004, %r13
	mov	$0xb000000000000005, %r14
	mov	$0xb000000000000006, %r15
	mov	(%rcx), %rax
	mov	8(%rcx), %rdi
	mov	16(%rcx), %rsi
	mov	24(%rcx), %rdx
	mov	32(%rcx), %r10
	mov	40(%rcx), %r8
	mov	48(%rcx), %r9
	std			/* the kernel keeps the flags, too */
	stc
	syscall
	/* rcx and r11 are the kernel's; the rest is looked at before it is used */
	mov	(%rsp), %rcx
	mov	%rax, 56(%rcx)
	mov	%rbx, 64(%rcx)
	mov	%rbp, 72(%rcx)
	mov	%r12, 80(%rcx)
	mov	%r13, 88(%rcx)
	mov	%r14, 96(%rcx)
	mov	%r15, 104(%rcx)
	mov	%rdi, 112(%rcx)
	mov	%rsi, 120(%rcx)
	mov	%rdx, 128(%rcx)
	mov	%r10, 136(%rcx)
	mov	%r8, 144(%rcx)
	mov	%r9, 152(%rcx)
	.irp	n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
	mov	-8*\n(%rsp), %rax
	mov	%rax, 176+8*\n-8(%rcx)
	.endr
	pushfq
	pop	160(%rcx)
	cld
	mov	%rsp, %rax
	sub	168(%rcx), %rax
	mov	%rax, 168(%rcx)
	fxsave64 416(%rcx)

	mov	8(%rsp), %rdx
	cmp	$1, %rdx
	ja	2f
	je	1f
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	movdqu	%xmm\n, 928+64*\n(%rcx)
	.endr
	jmp	3f
1:	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	vmovdqu	%ymm\n, 928+64*\n(%rcx)
	.endr
	vzeroupper
	jmp	3f
2:	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	vmovdqu64 %zmm\n, 928+64*\n(%rcx)
	.endr
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7
	kmovq	%k\n, 304+8*\n(%rcx)
	.endr
	vzeroupper
3:
	add	$16, %rsp
	fninit
	fldcw	4(%rsp)
	ldmxcsr	(%rsp)
	add	$8, %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
	.size	raw_syscall, . - raw_syscall

	.section .rodata
control: .short	0x0f7f		/* x87: towards zero */
	.align	4
status:	.long	0x7fbf		/* mxcsr: towards zero, all masked, some flags set */
	.section .note.GNU-stack, "", @progbits
