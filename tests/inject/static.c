/* A static program that looks like a user of CUDA: it has libcuda mapped and a
 * thread of the driver's name. There is no dlopen in it that could be called. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static void *driver(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "cuda-EvtHandlr");
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
	char input;
	pthread_t id;

	if (fd < 0 || mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ||
	    pthread_create(&id, NULL, driver, NULL))
		return 2;
	printf("ready\n");
	fflush(stdout);
	/* Until its input ends; a signal would be noticed. */
	return read(0, &input, 1) != 0;
}
