/** What is served under that name is the package's own file (serving/page/files.ts). */
export * from 'lightweight-charts';
