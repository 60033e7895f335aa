// Serves the page, and passes its requests on to Capstan with the key.
const authorization = process.env.CAPSTAN_KEY && `Bearer ${process.env.CAPSTAN_KEY}`;
const capstan = { target: process.env.CAPSTAN_URL ?? 'http://127.0.0.1:8080', headers: authorization ? { authorization } : {} };

export default { server: { proxy: { '/ag-ui': capstan } } };
