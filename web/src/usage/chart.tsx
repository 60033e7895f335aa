// A chart of stacked bars, one for each day or hour. Its lengths are attributes, because the security policy refuses style attributes in markup.

import { shown, type Measure, type Series } from "./totals";

const WIDTH = 600;
const HEIGHT = 160;

interface Props {
  periods: readonly string[];
  series: readonly Series[];
  measure: Measure;
  label: string;
}

export function Chart({ periods, series, measure, label }: Props) {
  const sums = periods.map((_, at) => series.reduce((sum, one) => sum + (one.periods[at]?.[measure] ?? 0), 0));
  const top = Math.max(...sums, 0);
  const step = WIDTH / periods.length;
  return (
    <figure className="chart">
      <figcaption className="faint">{`Most at a time: ${shown(measure, top)}`}</figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        {top > 0 && periods.map((period, at) => <Bar key={period} period={period} at={at} x={at * step} width={step} top={top} series={series} measure={measure} />)}
      </svg>
      <div className="chart-ends faint" aria-hidden="true">
        <span>{periods[0]}</span>
        <span>{periods.at(-1)}</span>
      </div>
    </figure>
  );
}

interface BarProps {
  period: string;
  at: number;
  x: number;
  width: number;
  top: number;
  series: readonly Series[];
  measure: Measure;
}

function Bar({ period, at, x, width, top, series, measure }: BarProps) {
  let foot = HEIGHT;
  const parts = series.map((one, number) => {
    const height = ((one.periods[at]?.[measure] ?? 0) / top) * HEIGHT;
    foot -= height;
    return height > 0 && <rect key={one.group} className={`series-${number}`} x={x + width * 0.1} y={foot} width={width * 0.8} height={height} />;
  });
  const lines = series.filter((one) => (one.periods[at]?.[measure] ?? 0) > 0).map((one) => `${one.group}: ${shown(measure, one.periods[at]?.[measure] ?? 0)}`);
  return (
    <g>
      <title>{[period, ...lines].join("\n")}</title>
      <rect className="chart-period" x={x} y={0} width={width} height={HEIGHT} />
      {parts}
    </g>
  );
}
