/** What is served under that name is the package's own file (serving/routes/page.ts). */
export * from 'lightweight-charts';
