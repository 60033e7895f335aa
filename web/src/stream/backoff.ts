// Waiting before a lost connection is tried again.

const LONGEST_S = 16;

/** Returns the wait before try number `tries`, from 0, in milliseconds: 1, 2, 4, 8, 16 s, each client at another time. */
export function pauseMs(tries: number, chance = Math.random()): number {
  return Math.min(2 ** tries, LONGEST_S) * 1000 * (0.75 + chance / 2);
}

/** A wait that reports the seconds left, and can be cut short. */
export class Pause {
  #wake: (() => void) | null = null;

  /** Ends the wait. */
  end(): void {
    this.#wake?.();
  }

  /** Waits. `onTick` gets the seconds left, each second. */
  async wait(ms: number, onTick: (seconds: number) => void): Promise<void> {
    const end = performance.now() + ms;
    let isAwake = false;
    while (!isAwake && performance.now() < end) {
      const left = end - performance.now();
      onTick(Math.max(1, Math.ceil(left / 1000)));
      isAwake = await new Promise<boolean>((resolve) => {
        const timer = setTimeout(() => resolve(false), Math.min(1000, left));
        this.#wake = () => {
          clearTimeout(timer);
          resolve(true);
        };
      });
    }
    this.#wake = null;
    onTick(0);
  }
}
