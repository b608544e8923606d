mod bpf;
