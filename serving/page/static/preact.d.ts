/** The service answers this path with the package's own file (serving/routes/page.ts). */
export * from 'preact';
