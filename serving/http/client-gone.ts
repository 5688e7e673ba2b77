/** The client closed the connection before its answer was complete. Nobody is left to be told. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone';

  constructor(options?: ErrorOptions) {
    super('the client went away', options);
  }
}
