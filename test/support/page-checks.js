/** Run inside of a page by tests. */

// biome-ignore lint/correctness/noUnusedVariables: called by the text that it is sent with
function lowContrast() {
  const canvas = document.createElement('canvas');
  canvas.width = 1;
  canvas.height = 1;
  const ink = canvas.getContext('2d', { willReadFrequently: true });
  /** Whatever way the colour is written, over another. */
  const over = (colour, ground) => {
    for (const style of [`rgb(${ground.join(' ')})`, colour]) {
      ink.fillStyle = style;
      ink.fillRect(0, 0, 1, 1);
    }
    return [...ink.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => {
      const value = part / 255;
      return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (element) => {
    const parent = element.parentElement ? groundOf(element.parentElement) : [255, 255, 255];
    return over(getComputedStyle(element).backgroundColor, parent);
  };
  const faults = new Set();
  for (const element of document.querySelectorAll('body *')) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== '');
    if (!hasText || !element.checkVisibility() || element.closest(':disabled, option, noscript')) continue;
    const style = getComputedStyle(element);
    const ground = groundOf(element);
    const [light, dark] = [luminance(over(style.color, ground)), luminance(ground)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = Number.parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio >= (isLarge ? 3 : 4.5)) continue;
    const text = element.textContent.trim().slice(0, 30);
    faults.add(`${element.tagName.toLowerCase()}.${element.className} ${ratio.toFixed(2)} "${text}"`);
  }
  return [...faults];
}

// biome-ignore lint/correctness/noUnusedVariables: called by the text that it is sent with
function nameless() {
  return [...document.querySelectorAll('button, a[href], input, select, summary, [role="img"], [role="region"]')]
    .filter((element) => element.checkVisibility())
    .filter((element) => {
      const text = element.getAttribute('aria-label') ?? element.textContent ?? '';
      return text.trim() === '' && (element.labels?.length ?? 0) === 0;
    })
    .map((element) => element.outerHTML.slice(0, 120));
}

// biome-ignore lint/correctness/noUnusedVariables: called by the text that it is sent with
function tooWide() {
  if (document.documentElement.scrollWidth <= innerWidth) return [];
  const reaching = [...document.querySelectorAll('body *')].filter(
    (element) => element.getBoundingClientRect().right > innerWidth && !element.closest('.scroll'),
  );
  return reaching.map((element) => `${element.tagName.toLowerCase()}.${element.className}#${element.id}`).slice(0, 10);
}
